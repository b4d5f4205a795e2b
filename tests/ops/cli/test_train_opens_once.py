"""`yatt train` opens the ledger once and reads the spec once, and hands both to the session and to the summary."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from db.ledger import Ledger
from flows.driver.guards import Ending
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.run.creation import current_spec, opened_run
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.services import ROOT
from yatt_core.spec import RunSpec
from yatt_core.spec.reading import load

OF_BILLING = 1
"""A session reads each revision on record once, to know the devices that were held before its first billing record."""
SPEC = str(ROOT / "tests" / "specs" / "virtual.yaml")


class Counted:
    """Counts the ledgers that this thread opens and the specs that it reads; threads of a session have ledgers of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledgers = 0
        self.specs = 0
        self._thread = threading.current_thread()
        self._open = Ledger.open
        self._read = load._validate
        monkeypatch.setattr(Ledger, "open", self._counted_open)
        monkeypatch.setattr(load, "_validate", self._counted_read)

    def _counted_open(self, *arguments: Any, **options: Any) -> Ledger:
        self.ledgers += threading.current_thread() is self._thread
        return self._open(*arguments, **options)

    def _counted_read(self, *arguments: Any, **options: Any) -> RunSpec:
        self.specs += threading.current_thread() is self._thread
        return self._read(*arguments, **options)


def stopped_at_once(session: DriverSession, services: object) -> SessionOutcome:
    """Ends a session that holds its lease before anything is started for it."""
    outcome = session.conclude(Ending("stopped", "asked", 0))
    session.end("stopped")
    return outcome


def test_a_new_run_opens_its_ledger_and_reads_its_spec_once(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.launch._drive", stopped_at_once)
    counted = Counted(monkeypatch)
    answer = yatt("train", SPEC, "--set", "tracking.enabled=false")
    assert answer.code == 0, answer.err
    assert "is stopped" in answer.out
    assert (counted.ledgers, counted.specs) == (1, 1 + OF_BILLING)


def test_the_spec_that_a_new_run_hands_on_is_the_one_on_record(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = list[RunSpec]()

    def look(session: DriverSession, services: object) -> SessionOutcome:
        handed.append(session.context.spec)
        return stopped_at_once(session, services)

    monkeypatch.setattr("flows.launch._drive", look)
    yatt("train", SPEC, "--set", "tracking.enabled=false")
    with opened_run(home, "virtual-1") as opened:
        assert [opened.spec] == handed
        assert current_spec(opened.ledger, "virtual-1").digest == handed[0].digest


def test_a_resumed_run_is_opened_for_its_command_and_for_its_session(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.launch._drive", stopped_at_once)
    yatt("train", SPEC, "--set", "tracking.enabled=false")
    counted = Counted(monkeypatch)
    assert yatt("resume", "latest").code == 0
    assert (counted.ledgers, counted.specs) == (2, 1 + OF_BILLING)
