"""Starts that a home has recorded: those like a new one are found, and a session records its own once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pytest

from db.core.errors import LedgerUnavailable
from db.ledger import Ledger
from flows.run.starts import SESSION_READY, Machine, SessionStart, starts_like
from tests.flows.simulated import Simulation
from yatt_core.planning.start import StartParts

HERE = Machine("here", 2)
PARTS = StartParts(
    services=("ray", "prefect"),
    engines={"trainer": "torch", "rollout": "torch"},
    actors={"controller": 2, "dispatcher": 1, "rollout": 2, "trainer": 2},
    parameters=400_000,
    prompts=18_639,
)
START = SessionStart(seconds=21.2, is_new=True, machine=HERE, parts=PARTS)


def recorded(ledger: Ledger, *starts: SessionStart) -> None:
    """Records starts, each of a run of its own, the last one as the newest."""
    for start in starts:
        run = ledger.runs.create("quickstart", {}, "digest", 1).id
        ledger.events.append(run, SESSION_READY, {"term": 1, **start.to_json()})


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    # Each reading of the clock is later, so that the order of the starts is certain.
    moments = iter(range(1_000, 1_000_000))
    with Ledger.open(tmp_path / "ledger.db", clock=lambda: next(moments)) as opened:
        yield opened


def test_a_start_is_read_as_it_was_recorded() -> None:
    assert SessionStart.from_json({"term": 3, **START.to_json()}) == START


def test_the_median_is_that_of_the_newest_starts(ledger: Ledger) -> None:
    recorded(ledger, *(replace(START, seconds=seconds) for seconds in (90.0, 27.0, 19.0, 22.0, 20.0, 25.0)))
    found = starts_like(ledger, HERE, PARTS, most=5)
    assert found == [25.0, 20.0, 22.0, 19.0, 27.0]
    assert median(found) == 22.0


@pytest.mark.parametrize(
    "unlike",
    [
        replace(START, is_new=False),
        replace(START, machine=Machine("elsewhere", 2)),
        replace(START, machine=Machine("here", 16)),
        replace(START, parts=replace(PARTS, services=("ray",))),
        replace(START, parts=replace(PARTS, engines={"trainer": "torch", "rollout": "vllm"})),
        replace(START, parts=replace(PARTS, actors={"trainer": 2})),
        replace(START, parts=replace(PARTS, parameters=500_000_000)),
        replace(START, parts=replace(PARTS, prompts=100_000)),
    ],
    ids=["resumed", "host", "cores", "services", "engines", "some actors were alive", "model", "inputs"],
)
def test_a_start_that_is_not_like_it_does_not_count(ledger: Ledger, unlike: SessionStart) -> None:
    recorded(ledger, unlike)
    assert starts_like(ledger, HERE, PARTS, most=5) == []
    recorded(ledger, replace(START, seconds=30.0), unlike)
    assert starts_like(ledger, HERE, PARTS, most=5) == [30.0]


def test_each_session_records_its_start_once(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    assert simulation.drive(killed_at="collect:2") is None
    simulation.drive()
    with simulation.ledger() as ledger:
        links = ledger.events.of_kind(simulation.run, SESSION_READY)
    assert [link.body["term"] for link in links] == [1, 2]


def test_a_start_whose_record_found_no_ledger_has_none(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, "iterations=2")
    away = LedgerUnavailable("the ledger at db:5432 does not answer")
    with mock.patch("flows.driver.session.record_start", side_effect=[away]) as record:
        outcome = simulation.drive()
    assert outcome is not None
    assert outcome.state == "completed"
    record.assert_called_once()
