"""Messages while Prefect's server is unreachable: they name it without its password, and other work continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from httpx import ConnectError, HTTPStatusError, ReadTimeout, Request, Response
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, temporary_settings

from db.ledger import Ledger
from flows import launch, train
from flows.driver.run_status import SessionOutcome
from flows.prefect_io import prefect_events
from flows.prefect_io.optional_client import OptionalClient
from flows.prefect_io.prefect_client import server_needed, server_trouble, start_trouble
from flows.prefect_io.prefect_server import PREFECT_VARIABLE
from flows.run.home import Home
from flows.schedule import reaper, window_start
from ops.group import reaping
from tests.ops.seeding import seed_run
from yatt_core.errors import AwayError, InfrastructureError

SERVER = "http://me:hunter2@prefect.test:4200/api"
TROUBLE = "Prefect's server at http://prefect.test:4200/api: ConnectError: no answer from "


def unreachable(*_: object, **__: object) -> NoReturn:
    raise ConnectError(f"no answer from {SERVER}")


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Points Prefect's client at one server, while the environment names another."""
    monkeypatch.setenv(PREFECT_VARIABLE, "http://elsewhere.test/api")
    with temporary_settings({PREFECT_API_URL: SERVER}):
        yield


def test_the_message_about_an_unreachable_server_says_what_to_do() -> None:
    refused = ConnectError("no answer from it")
    assert server_trouble(refused) == f"{TROUBLE}it"
    needed = server_needed(refused)
    assert needed.startswith(f"{TROUBLE}it; ") and "`yatt up`" in needed and "PREFECT_API_URL" in needed
    wrong = PrefectException("it refuses")
    assert server_needed(wrong) == server_trouble(wrong)


def answer(status: int) -> HTTPStatusError:
    """Returns the error of a request that the server answered with a status."""
    request = Request("GET", SERVER)
    return HTTPStatusError("said", request=request, response=Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (ConnectError("no answer"), True),
        (ReadTimeout("no answer in time"), True),
        (PrefectException("no answer"), True),
        (answer(500), True),
        (answer(503), True),
        (answer(429), True),
        (answer(401), False),
        (answer(404), False),
    ],
    ids=["no connection", "no answer in time", "prefect's error", "500", "503", "429", "401", "404"],
)
def test_a_start_waits_for_a_server_that_gives_no_answer_and_not_for_one_that_refuses(
    error: Exception, away: bool
) -> None:
    trouble = start_trouble(error)
    assert isinstance(trouble, InfrastructureError) and isinstance(trouble, AwayError) == away
    assert "http://prefect.test:4200/api" in str(trouble) and "hunter2" not in str(trouble)
    assert not isinstance(trouble, AwayError) or trouble.dependency == "the Prefect server"


def test_a_flow_that_cannot_begin_without_the_server_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train", unreachable)
    monkeypatch.setattr(prefect_events, "sent_events", nullcontext)
    context = SimpleNamespace(run="toy-1")
    session: Any = SimpleNamespace(context=context, window=None, failure=None, outcome=None, claimed=False)
    with pytest.raises(AwayError) as caught:
        launch._run_flow(session)
    assert caught.value.dependency == "the Prefect server"


def artifact(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    with OptionalClient.open(said.append, said.append) as client:
        client.ask(unreachable)


def end_of_a_session(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train", unreachable)
    monkeypatch.setattr(prefect_events, "sent_events", nullcontext)
    outcome = SessionOutcome("toy-1", "completed", 4, "target reached", 0)
    observer = SimpleNamespace(warned=logging.getLogger("yatt_core.flow").warning)
    context = SimpleNamespace(run="toy-1", observer=observer)
    session: Any = SimpleNamespace(context=context, window=None, failure=None, outcome=outcome, claimed=True)
    assert launch._run_flow(session) is outcome


def window(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_start, "reap", unreachable)
    with Ledger.open(home.ledger) as ledger:
        window_start._close_dead(ledger, home)


def round_of_the_keeper(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def reap(ledger: Ledger, home: Home) -> NoReturn:
        ended.set()
        unreachable()

    monkeypatch.setattr(reaper, "reap", reap)
    reaping._go_round(home, ended)


@pytest.mark.parametrize("work", [artifact, end_of_a_session, window, round_of_the_keeper])
def test_work_that_continues_without_the_server_names_it_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, work: Any
) -> None:
    home = Home(tmp_path / "runs")
    seed_run(home)
    work(home, monkeypatch)
    assert TROUBLE in caplog.text and "hunter2" not in caplog.text
