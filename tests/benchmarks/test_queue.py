"""The benchmark of the queue: its simulation ends all runs, keeps limits, and beats FIFO on a short workload."""

from __future__ import annotations

import pytest

from benchmarks.queue import workload
from benchmarks.queue.__main__ import cost_errors, simulate, utilisation, waits
from benchmarks.queue.fifo import decide_fifo
from benchmarks.queue.simulated_run import undisturbed_digest
from flows.queueing.decisions import decide


def test_half_a_day_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "DAYS", 0.5)
    spec = workload.pools()
    (ours,), (fifo,) = (simulate([3], spec, policy, "test") for policy in (decide, decide_fifo))
    runs = ours.runs.values()
    assert all(run.digest == undisturbed_digest(run.job) for run in runs)
    assert sum(run.preempted for run in runs) > 0
    assert sum(waits(ours, workload.HIGH)) < sum(waits(fifo, workload.HIGH))
    assert sum(cost_errors(ours)) / len(cost_errors(ours)) < 0.15
    assert 0.0 < utilisation(spec, fifo) <= 1.0
