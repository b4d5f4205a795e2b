"""`yatt open`: the page of a run that a server shows, or what starts one."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Iterator

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from flows.delivery.outbox import creation_id
from flows.run.home import Home
from ops.cli.commands.inspection import pages
from ops.group.members import Ports
from ops.group.pages import live_pages
from ops.group.record import GroupRecord, write_record
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run


@pytest.fixture
def address() -> Iterator[str]:
    """Yields the address of something that listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def run(home: Home) -> str:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        ledger.outbox.enqueue(fence, [OutboxEntry(creation_id(run, 0), "run", {}, 1)])
        assert creation_id(run, 0) in [row.id for row in ledger.outbox.claim(fence, 100)]
        ledger.outbox.delivered(fence, [creation_id(run, 0)], "7/abc")
        ledger.leases.start_session(fence, "flow-1", run)
        ledger.leases.release(fence)
    return run


def test_the_page_of_each_server_is_printed(
    run: str, yatt: Yatt, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = address.replace("//", "//ann:secret@")
    for name, suffix in (("YATT_DASHBOARD_URL", ""), ("MLFLOW_TRACKING_URI", ""), ("PREFECT_API_URL", "/api")):
        monkeypatch.setenv(name, secret + suffix)
    expected = {
        "--print": f"{address}/runs/{run}",
        "--mlflow": f"{address}/#/experiments/7/runs/abc?workflowType=machine_learning",
        "--prefect": f"{address}/runs/flow-run/flow-1",
    }
    for option, page in expected.items():
        answer = yatt("open", "latest", option, "--print")
        assert (answer.code, answer.out) == (0, f"{page}\n"), answer.err


def test_the_browser_opens_the_page_where_there_is_a_display(
    run: str, yatt: Yatt, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or True)
    monkeypatch.setenv("YATT_DASHBOARD_URL", address)
    monkeypatch.setattr(pages, "has_display", lambda: False)
    assert yatt("open", run).out == f"{address}/runs/{run}\n" and not opened
    monkeypatch.setattr(pages, "has_display", lambda: True)
    assert yatt("open", run).out == "" and opened == [f"{address}/runs/{run}"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--print",), 1, "yatt dashboard"),
        (("--mlflow",), 1, "yatt up"),
        (("--prefect",), 1, "yatt up"),
        (("--mlflow", "--prefect"), 2, "--prefect"),
    ],
)
def test_nothing_is_started(
    run: str, yatt: Yatt, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, says: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("YATT_DASHBOARD_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        answer = yatt("open", run, *words)
    assert (answer.code, answer.out) == (code, "") and says in answer.err


def test_a_group_that_is_not_up_has_no_pages(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.group.mkdir(parents=True)
    write_record(home.group, GroupRecord(None, Ports(1, 2, 3, 4), 0.0))
    found = live_pages(home)
    assert (found.dashboard, found.mlflow, found.prefect) == ("", "", "")
    monkeypatch.setattr("ops.group.pages.current_state", lambda folder: object())
    found = live_pages(home)
    assert (found.dashboard, found.mlflow) == ("http://127.0.0.1:3", "http://127.0.0.1:2")
    assert found.prefect == "http://127.0.0.1:1"
