"""The simulation of `benchmarks.recovery`, on the product's driver loop: known faults cost as much as a manual sum."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.checkpoint_stall import stall_of
from benchmarks.recovery import best_checkpoint_only, ettr
from benchmarks.simulation import checkpoint_only
from benchmarks.simulation.drive import drive
from benchmarks.simulation.trace import DRIVER, ENGINE, TRAINER, Durations, Fault, Trace, draw_trace

TIMES = Durations()
TRACE = Trace(
    iterations=6,
    faults={
        2: Fault(DRIVER, 108 / 300),  # in collect: eight shards are sealed, the ninth continues without the driver
        4: Fault(TRAINER, 250 / 300),  # 30 s into learn
        5: Fault(ENGINE, 30 / 300),  # in collect: two shards are sealed, the third is lost
    },
    durations=TIMES,
)


def test_the_product_recovers_as_calculated_by_hand() -> None:
    driven = drive(TRACE, every=3)
    checkpoint_0 = TIMES.stall + TIMES.publish
    start = TIMES.reload_trainer + checkpoint_0 + TIMES.sync
    last_checkpoint = TIMES.publish
    trainer = 30 + TIMES.reload_trainer  # checkpoint 3 is durable: nothing to replay
    engine = 30 - 2 * TIMES.collect / 16 + TIMES.reload_engine + TIMES.sync
    undisturbed = start + 6 * TIMES.iteration + 2 * TIMES.stall + last_checkpoint
    assert driven.wall_seconds == pytest.approx(undisturbed + trainer + engine)
    assert (driven.drivers, driven.struck) == (2, 3)
    buckets = driven.accounts.buckets
    assert driven.accounts.wall_seconds == pytest.approx(driven.wall_seconds, abs=0.01)
    assert buckets["checkpoint"] == pytest.approx(2 * TIMES.stall, abs=0.01)
    assert buckets["waiting"] == pytest.approx(last_checkpoint, abs=0.01)
    assert buckets["start"] == pytest.approx(120, abs=0.01)
    assert buckets["restart"] == pytest.approx(15 + 120 + 60 + 15, abs=0.01)
    assert driven.accounts.phases["redone"] == pytest.approx({"learn": 30, "collect": 3 + 3.75}, abs=0.01)
    kinds = Counter(crash.kind for crash in driven.accounts.crashes)
    assert kinds == {"driver lost": 1, "infrastructure": 2}
    assert driven.weights_digest == drive(replace(TRACE, faults={}), every=3).weights_digest


def test_checkpoints_alone_redo_whole_iterations() -> None:
    restarts = TIMES.reload_trainer + TIMES.reload_driver + TIMES.reload_trainer + TIMES.reload_engine
    thrown_away = (300 + 108) + 250 + (300 + 30)  # back to checkpoints 0, 3, 3
    expected = restarts + thrown_away + 6 * TIMES.iteration + 2 * TIMES.stall
    assert checkpoint_only.wall_seconds(TRACE, 3) == pytest.approx(expected)
    best, tried = best_checkpoint_only([TRACE])
    assert tried[best] == max(tried.values())
    assert ettr([TRACE], [3600.0]) == 0.5


def test_the_trace_has_its_shares_and_depends_only_on_the_seed() -> None:
    trace = draw_trace(100, 10, 7, TIMES)
    assert trace == draw_trace(100, 10, 7, TIMES)
    assert trace != draw_trace(100, 10, 8, TIMES)
    assert Counter(fault.kind for fault in trace.faults.values()) == {TRAINER: 40, ENGINE: 40, DRIVER: 20}
    assert max(trace.faults) <= trace.iterations == 1000
    assert all(0 <= fault.share < 1 for fault in trace.faults.values())


def test_the_stall_is_computed_from_the_relevant_iterations() -> None:
    seconds = [(1, 90.0), (2, 80.0), (3, 5.0), (4, 5.2), (5, 5.5), (6, 5.1), (7, 5.0), (8, 70.0)]
    stall = stall_of(seconds, every=5)
    assert (stall.with_checkpoint, stall.after_checkpoint) == (5.5, 5.1)
    assert stall.without == pytest.approx(5.05)
    assert stall.share == pytest.approx(0.45 / 5.05)
