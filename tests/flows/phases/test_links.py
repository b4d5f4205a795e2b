"""The links that a session sends to tracker and Prefect when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.core.errors import LedgerUnavailable
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.phases.links import publish_links
from flows.run.home import Home
from flows.run.pages import NO_PAGES, Pages, page_address
from flows.run.protocols import SilentObserver
from tests.ops.seeding import seed_run, toy_spec


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200"),
        ("https://ann:secret@host.example:8443/mlflow/?token=secret", "https://host.example:8443/mlflow"),
        ("http://[::1]:5000", "http://[::1]:5000"),
        ("sqlite:////runs/mlflow.db", ""),
        ("postgresql://ann:secret@host/mlflow", ""),
        ("http://host:port", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_an_address_for_a_browser_contains_no_secret(given: str | None, address: str) -> None:
    assert page_address(given) == address


def published(home: Home, pages: Pages) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Publishes the links of a session; returns its outbox rows by kind, and the artifacts of its flow run."""
    artifacts: list[str] = []
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        ledger.runs.set_mlflow_run(fence, "abc")
        context = RunContext.of(home, toy_spec(), ledger, fence, SilentObserver(), pages=pages)
        publish_links(context, "flow-1", lambda name, markdown, description: artifacts.append(markdown))
        rows = {row.kind: dict(row.payload) for row in ledger.outbox.claim(fence, 100) if "/links/" in row.id}
    return rows, artifacts


def test_tracker_and_prefect_learn_where_the_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://ann:secret@127.0.0.1:4200/api")
    rows, (note,) = published(Home(tmp_path / "runs"), Pages("http://127.0.0.1:8686", "http://127.0.0.1:5000"))
    dashboard = "http://127.0.0.1:8686/runs/toy-1"
    prefect = "http://127.0.0.1:4200/runs/flow-run/flow-1"
    assert rows["tags"] == {"yatt.dashboard_url": dashboard, "yatt.prefect_url": prefect}
    assert f"({dashboard})" in rows["note"]["text"] and f"({prefect})" in rows["note"]["text"]
    assert f"({dashboard})" in note and "http://127.0.0.1:5000/#/runs/abc?" in note and "4200" not in note


def test_without_pages_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert published(Home(tmp_path / "runs"), NO_PAGES) == ({}, [])


def test_a_ledger_that_is_away_ends_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise LedgerUnavailable("the ledger at db:5432 does not answer")

    monkeypatch.setattr("flows.phases.links.mlflow_place", away)
    assert published(Home(tmp_path / "runs"), Pages("http://127.0.0.1:8686", "http://127.0.0.1:5000")) == ({}, [])
