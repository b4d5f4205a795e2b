"""A session that stops after an iteration, with a checkpoint, and the one that continues the run."""

from __future__ import annotations

from pathlib import Path

from tests.flows.simulated import Simulation


def digests(simulation: Simulation) -> list[str | None]:
    with simulation.ledger() as ledger:
        return [ledger.commits.at(simulation.run, iteration).weights_digest for iteration in range(6)]


def test_a_run_that_stopped_after_an_iteration_ends_like_one_that_did_not(tmp_path: Path) -> None:
    one, other = (Simulation.of(tmp_path / name, "iterations=5", "checkpoints.every=100") for name in ("one", "other"))
    outcome = one.drive(until=2)
    assert outcome is not None and (outcome.state, outcome.iteration) == ("stopped", 2)
    assert one.watcher is not None and one.watcher.targets == [2] * 3, "progress is shown towards iteration 2"
    with one.ledger() as ledger:
        assert ledger.records.checkpoints(one.run)[0].iteration == 2
    repeated = one.drive(until=1)
    assert repeated is not None and (repeated.iteration, repeated.reason) == (2, "iteration 1 reached before")
    with one.ledger() as ledger:
        assert len(ledger.overview.sessions(one.run, 9)) == 1, "nothing was started for it"
    for simulation in (one, other):
        outcome = simulation.drive()
        assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 5)
    assert digests(one) == digests(other)
