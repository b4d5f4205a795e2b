"""The overhead of an iteration, from the ledger and the telemetry that a run leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.overhead import Spent, spent_of
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import Metric
from yatt_core.experience.telemetry import write_telemetry

ITERATIONS = 5
EVALUATED = 4


def test_overhead_is_what_is_not_in_the_longest_chain_of_engine_compute(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("test", {"seed": 0}, "d" * 64, ITERATIONS).id
        fence = ledger.leases.acquire(run, this_process("test"), ttl_seconds=600)
        for iteration in range(ITERATIONS + 1):
            for seconds_of_prepare in (99.0, 1.5):
                attempt = ledger.phases.plan(fence, 0, iteration, "prepare")
                ledger.phases.dispatch(fence, attempt)
                timing = {"load": 0.5, "seconds": seconds_of_prepare}
                ledger.phases.finish(fence, attempt, {"timing": timing}, 2.0, 0)
            write_telemetry(tmp_path / run, 0, iteration, "learn.t0001", {"load": 0.25, "seconds": 99.0})
            write_telemetry(tmp_path / run, 0, iteration, "learn.t0002", {"load": 0.25, "seconds": 2.25})
            write_telemetry(tmp_path / run, 0, iteration, "collect.w00.t0001", {})
            seconds = {"seconds/iteration": 10.0 + iteration, "devices/0/rollout_seconds": 3.0}
            seconds["devices/1/rollout_seconds"] = 4.0
            if iteration == EVALUATED:
                seconds["seconds/evaluate"] = 1.0
            commit = IterationCommit(
                branch=0,
                iteration=iteration,
                control_state={},
                logged_at_ms=iteration,
                experience_digest="e" * 64,
                weights_digest="f" * 64,
                fingerprint={},
                metrics=[Metric(name, value, "timing") for name, value in seconds.items()],
            )
            ledger.commits.commit(fence, commit)
    found = spent_of(tmp_path)
    assert found == [Spent(3, 13.0, 4.0 + 1.0 + 2.0), Spent(5, 15.0, 7.0)], (
        "iteration 4 evaluates, the first ones begin"
    )
    assert [one.overhead for one in found] == pytest.approx([6.0, 8.0])
