"""Runs of workloads on several ranks: killed, changed to another number of them, and divided states read by any number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flows.reports.audit import verify_run
from tests.workloads.in_process import OwnRun

COUNTING = Path(__file__).parent / "counting.yaml"
DIVIDED = "workload.kind=tests.workloads.counting:Divided"
KILLED_AT = (
    "sft:0",
    "after prepare:1",
    "after learn:1",
    "after checkpoint:2",
    "after evaluate:2",
    "commit:3",
    "after learn:4",
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def alone(tmp_path: Path) -> OwnRun:
    own = OwnRun.of(tmp_path / "alone", COUNTING, DIVIDED)
    own.drive()
    return own


def test_ranks_that_hold_rows_of_the_state_are_killed_and_end_with_the_same_bits(tmp_path: Path, alone: OwnRun) -> None:
    struck = OwnRun.of(tmp_path / "struck", COUNTING, DIVIDED, "trainer.engine.ranks=2")
    reached = [place for number, place in enumerate(KILLED_AT) if struck.drive(place, cold=number % 2 == 1) is None]
    struck.drive(cold=True)
    assert reached == list(KILLED_AT)
    assert struck.results().weights_digest == alone.results().weights_digest is not None
    assert struck.results().metrics_digest == alone.results().metrics_digest


def test_the_number_of_ranks_changes_between_sessions(tmp_path: Path, alone: OwnRun) -> None:
    changed = OwnRun.of(tmp_path / "changed", COUNTING, DIVIDED, "trainer.engine.ranks=3")
    changed.drive(until=1)
    changed.revise("trainer.engine.ranks=2")
    changed.drive(until=3)
    changed.revise("trainer.engine.ranks=1")
    assert changed.drive("after learn:4") is None
    changed.drive(cold=True)
    assert changed.results().weights_digest == alone.results().weights_digest
    with changed.ledger() as ledger:
        layouts = [tuple(link.body["changes"]["layout"]) for link in ledger.events.of_kind(changed.run, "drift")]
        report = verify_run(ledger, changed.run, changed.folder, None)
    assert list(dict.fromkeys(layouts)) == [("torch x 3", "torch x 2"), ("torch x 2", "torch x 1")]
    assert report.sound, report.disagreement
