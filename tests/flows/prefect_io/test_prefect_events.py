"""A driver whose Prefect server has died writes its client's errors to the log, and does not wait for it at its end."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import time
from contextvars import ContextVar
from pathlib import Path

import pytest
from prefect.events import Event
from prefect.events.worker import EventsWorker

from flows.prefect_io import prefect_events
from flows.prefect_io.prefect_events import HeldEvents, sent_events, without_outdated
from flows.prefect_io.prefect_server import use_server
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.supervisor.runner import free_port

CODE = """
import sys
from pathlib import Path
from yatt_core.logs import actor_logs
actor_logs(Path(sys.argv[1]), "driver", 1)
from prefect.events import emit_event
from flows.prefect_io.prefect_events import sent_events
with sent_events():
    emit_event("test", resource={"prefect.resource.id": "test"})
"""


def test_the_terminal_of_a_driver_shows_no_error_of_prefects_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        use_server(tmp_path, f"http://127.0.0.1:{free_port(set())}")
        environment = dict(os.environ)
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=True)
    assert ended.stdout + ended.stderr == ""
    (log,) = (tmp_path / "logs").glob("*.jsonl")
    assert "prefect._internal" in log.read_text()


class Worker:
    """Stands in for the thread that sends Prefect's events."""

    def __init__(self) -> None:
        self.sent = list[str]()

    async def _handle(self, event: str) -> None:
        self.sent.append(event)

    def take(self, event: str) -> None:
        asyncio.run(self._handle(event))


def test_events_that_are_still_queued_after_a_session_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's client would try each of them for some eight seconds before the process may end."""
    assert inspect.iscoroutinefunction(getattr(EventsWorker, prefect_events.HANDLER)), "a new version of Prefect"
    worker = Worker()
    monkeypatch.setattr(EventsWorker, "instance", lambda: worker)
    monkeypatch.setattr(prefect_events, "END_SECONDS", 0.05)
    with sent_events():
        worker.take("during")
    wait_until(lambda: prefect_events.HANDLER in vars(worker))
    worker.take("long after")
    with sent_events():
        time.sleep(0.2)
        worker.take("of the next session")
    assert worker.sent == ["during", "of the next session"]


def event(state: str, task_run: str, follows: Event | None = None) -> Event:
    """Returns the event of a task run's new state."""
    return Event(
        event=f"prefect.task-run.{state}",
        resource={"prefect.resource.id": f"prefect.task-run.{task_run}"},
        follows=None if follows is None else follows.id,
    )


def test_a_task_run_that_has_ended_meanwhile_is_not_reported_as_running() -> None:
    short = event("Running", "short")
    ended = event("Completed", "short", follows=short)
    long = event("Running", "long")
    news = without_outdated([short, ended, long])
    assert [one.id for one in news] == [ended.id, long.id]
    assert news[0].follows is None and news[0].payload == ended.payload, "nothing waits for what never comes"
    failed = event("Failed", "long", follows=long)
    assert without_outdated([failed]) == [failed], "it was said to be running"


def test_events_are_sent_together_in_their_order_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_events, "HOLD_SECONDS", 0.05)
    flow_run: ContextVar[str] = ContextVar("flow_run")
    sent: list[tuple[str, str]] = []

    def send(one: Event) -> None:
        sent.append((one.event.rpartition(".")[2], flow_run.get()))

    held = HeldEvents()
    flow_run.set("iterations 1 to 10")
    held.take(send, event("Running", "a"))
    flow_run.set("iterations 11 to 20")
    held.take(send, event("Running", "b"))
    assert sent == []
    wait_until(lambda: len(sent) == 2)
    assert sent == [("Running", "iterations 1 to 10"), ("Running", "iterations 11 to 20")]
    held.take(send, event("Running", "c"))
    held.flush()
    assert len(sent) == 3


def test_a_session_leaves_nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Event] = []

    def send(worker: EventsWorker, one: Event) -> None:
        sent.append(one)

    worker = Worker()
    monkeypatch.setattr(EventsWorker, "instance", lambda: worker)
    with monkeypatch.context() as patch:
        patch.setattr(EventsWorker.__mro__[1], "send", send)
        with sent_events():
            stand_in: EventsWorker = EventsWorker.__new__(EventsWorker)
            stand_in.send(event("Running", "a"))
            assert sent == []
        assert len(sent) == 1
        stand_in.send(event("Completed", "a"))
        assert len(sent) == 2, "outside of sessions nothing is held"
