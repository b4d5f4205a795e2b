"""A lag in the product's loop with simulated actors: what overlaps, what each commit names, and kills at every phase."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.cluster import DriverKilled
from flows.branching.branches import open_branch, revise
from flows.run.control_state import ControlState, InFlight
from flows.run.creation import current_spec
from flows.run.lease import operator_lease
from flows.run.results import RunResults, run_results
from tests.flows.simulated import BranchRunActors, Simulation
from tests.flows.tools import same_result
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, ShardReceipt, ShardTask, UpdateReceipt

ITERATIONS = 6
BEGUN = 5
"""An iteration that is collected ahead with any of the lags that are tried."""
PHASES = ("place", "collect", "begin_ahead", "prepare", "learn", "collect_ahead", "sync", "commit")


def simulation_of(folder: Path, lag: int, *more: str) -> Simulation:
    spec = (f"asynchrony.lag={lag}", f"iterations={ITERATIONS}", "checkpoints.every=3", *more)
    return Simulation.of(folder, *spec)


def finish(simulation: Simulation, cold: bool = False) -> RunResults:
    ended = simulation.drive(cold=cold)
    assert ended is not None and ended.state == "completed", ended
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        return run_results(ledger, simulation.run)


def states_of(simulation: Simulation, branch: int | None = None) -> list[ControlState]:
    with simulation.ledger() as ledger:
        last = ledger.runs.find(simulation.run).iteration
        commits = [ledger.commits.at(simulation.run, i, branch) for i in range(1, last + 1)]
    return [ControlState.from_json(commit.state) for commit in commits if commit is not None]


@pytest.mark.parametrize(
    ("lag", "versions"), [(0, [0, 1, 2, 3, 4, 5]), (1, [0, 0, 1, 2, 3, 4]), (3, [0, 0, 0, 0, 1, 2])]
)
def test_the_lag_alone_determines_the_weights_that_an_iteration_is_sampled_under(
    tmp_path: Path, lag: int, versions: list[int]
) -> None:
    simulation = simulation_of(tmp_path, lag)
    finish(simulation)
    states = states_of(simulation)
    assert [state.sampled_under for state in states] == versions
    for state in states:
        following = range(state.iteration + 1, min(state.iteration + lag, ITERATIONS) + 1)
        assert state.in_flight == tuple(InFlight(number, versions[number - 1]) for number in following)
    with simulation.ledger() as ledger:
        staleness = [value for _, value in ledger.metrics.history(simulation.run, "staleness/max")]
        commits = [ledger.commits.at(simulation.run, i) for i in range(1, ITERATIONS + 1)]
    assert staleness == ([i - v for i, v in enumerate(versions)] if lag else [])
    assert all(commit is not None for commit in commits)


def test_engines_work_while_the_trainer_does(tmp_path: Path) -> None:
    seconds = []
    for lag in (0, 1):
        simulation = simulation_of(tmp_path / str(lag), lag)
        finish(simulation)
        seconds.append(simulation.cluster.clock.seconds)
    times = simulation.cluster.trace.durations
    saved = (ITERATIONS - 1) * min(times.collect, times.prepare + times.learn)
    assert seconds[0] - seconds[1] == pytest.approx(saved, rel=0.01)


@pytest.mark.verify
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cold", [False, True])
def test_killed_in_any_phase_it_ends_with_the_same_bits(tmp_path: Path, lag: int, phase: str, cold: bool) -> None:
    """Killed at the beginning of the phase of the first and the last iteration that has it."""
    undisturbed = simulation_of(tmp_path / "quiet", lag)
    quiet = finish(undisturbed)
    simulation = simulation_of(tmp_path / "killed", lag)
    iterations = [iteration for each, iteration in places_of(undisturbed) if each == phase]
    for iteration in sorted({iterations[0], iterations[-1]}):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None
    assert same_result(quiet, finish(simulation, cold))


def places_of(simulation: Simulation) -> list[tuple[str, int]]:
    """Returns the phases that a run went through, with their iterations, in order."""
    with simulation.ledger() as ledger:
        attempts = [row for i in range(1, ITERATIONS + 1) for row in ledger.phases.attempts(simulation.run, 0, i)]
    return [(row.phase, row.iteration) for row in sorted(attempts, key=lambda row: row.planned_at)]


def test_engines_keep_the_older_weights_until_what_they_are_at_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer has learnt, the collection beside it fails: it goes on without restoring anything."""
    quiet = finish(simulation_of(tmp_path / "quiet", 1))
    simulation = simulation_of(tmp_path / "failing", 1)
    failed = list[int]()
    restored = list[int]()
    collect = BranchRunActors.collect
    restore = BranchRunActors.restore

    def collecting(actors: BranchRunActors, tasks: object, *given: object) -> object:
        trainer = simulation.cluster.trainer
        for receipt in collect(actors, tasks, *given):  # type: ignore[arg-type]
            if trainer.version == 4 and receipt.key.shard == 2 and not failed:
                failed.append(receipt.key.iteration)
                raise InfrastructureError("a controller is gone")
            yield receipt

    def restoring(actors: BranchRunActors, folder: str, sha256: str, version: int, renew: bool = False) -> None:
        restored.append(version)
        restore(actors, folder, sha256, version, renew)

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    monkeypatch.setattr(BranchRunActors, "restore", restoring)
    assert same_result(quiet, finish(simulation))
    assert failed == [5]
    assert restored == []


def test_an_update_that_fails_while_engines_work_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = finish(simulation_of(tmp_path / "quiet", 1))
    simulation = simulation_of(tmp_path / "failing", 1)
    failed = list[int]()
    learn = BranchRunActors.learn

    def learning(actors: BranchRunActors, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        if task.key.iteration == 3 and not failed:
            failed.append(3)
            raise InfrastructureError("a rank does not answer")
        return learn(actors, task, prepared)

    monkeypatch.setattr(BranchRunActors, "learn", learning)
    assert same_result(quiet, finish(simulation))
    assert failed == [3]


def test_a_longer_target_and_another_lag_go_on_from_what_is_in_flight(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path, 3)
    assert simulation.drive(until=2) is not None
    assert states_of(simulation)[-1].in_flight == (InFlight(3, 0), InFlight(4, 0), InFlight(5, 1))
    revise(simulation.home, simulation.run, ["asynchrony.lag=1", "iterations=7"])
    finish(simulation)
    assert [state.sampled_under for state in states_of(simulation)] == [0, 0, 0, 0, 1, 4, 5]


@pytest.mark.parametrize(("lag", "change"), [(1, "asynchrony.lag=0"), (3, "asynchrony.lag=1"), (1, "iterations=4")])
def test_what_was_begun_ahead_is_finished_under_its_weights_though_the_lag_or_the_target_is_smaller_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int, change: str
) -> None:
    """A part of an iteration is recorded; the rest must not be sampled under newer weights."""
    simulation = simulation_of(tmp_path, lag)
    collect = BranchRunActors.collect

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        for receipt in collect(actors, tasks, *given):
            if receipt.key.iteration == BEGUN and receipt.key.shard == 2:
                raise DriverKilled
            yield receipt

    with monkeypatch.context() as patched:
        patched.setattr(BranchRunActors, "collect", collecting)
        assert simulation.drive() is None
    revise(simulation.home, simulation.run, [change])
    simulation.cluster.collection = None
    finish(simulation, cold=True)
    if change.startswith("iterations"):
        revise(simulation.home, simulation.run, ["iterations=6"])
        finish(simulation)
    with simulation.ledger() as ledger:
        rows = ledger.records.shards(simulation.run, 0, BEGUN)
    folder = simulation.home.run_folder(simulation.run)
    versions = {(folder / row.folder / "samples.parquet").read_text().rpartition(" ")[2] for row in rows}
    assert versions == {str(BEGUN - 1 - lag)}
    assert states_of(simulation)[BEGUN - 1].sampled_under == BEGUN - 1 - lag


def test_a_stop_while_engines_are_at_an_older_version_ends_with_a_checkpoint_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulation_of(tmp_path, 1)
    collect = BranchRunActors.collect

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        for receipt in collect(actors, tasks, *given):
            if simulation.cluster.trainer.version == 5 and receipt.key.shard == 2:
                with simulation.ledger() as ledger:
                    ledger.runs.ask_to_stop(simulation.run)
                raise InfrastructureError("a controller is gone")
            yield receipt

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("stopped", 4)
    with simulation.ledger() as ledger:
        assert ledger.records.checkpoints(simulation.run)[0].iteration == 4


def test_a_branch_begins_with_nothing_in_flight(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path, 1)
    finish(simulation)
    with simulation.ledger() as ledger, operator_lease(ledger, simulation.run, "a test") as lease:
        fence = lease.fence
        open_branch(ledger=ledger, fence=fence, spec=current_spec(ledger, simulation.run), at=3, reason="a test")
    finish(simulation)
    assert [state.sampled_under for state in states_of(simulation)] == [0, 0, 1, 3, 3, 4]


def test_what_waits_for_its_turn_and_is_damaged_is_made_again_under_the_weights_of_then(tmp_path: Path) -> None:
    quiet = finish(simulation_of(tmp_path / "quiet", 2))
    simulation = simulation_of(tmp_path / "damaged", 2)
    assert simulation.drive("learn:5") is None
    assert states_of(simulation)[-1].in_flight == (InFlight(5, 2), InFlight(6, 3))
    folder = simulation.home.run_folder(simulation.run)
    with simulation.ledger() as ledger:
        damaged = [ledger.records.shards(simulation.run, 0, iteration)[1] for iteration in (4, 5, 6)]
    for row in damaged:
        (folder / row.folder / "samples.parquet").write_bytes(b"lost")
        simulation.cluster.sealed = {
            key: receipt for key, receipt in simulation.cluster.sealed.items() if receipt.folder != row.folder
        }
    assert same_result(quiet, finish(simulation, cold=True))
    with simulation.ledger() as ledger:
        made = [link.body["iteration"] for link in ledger.events.of_kind(simulation.run, "shard_regenerated")]
    assert made == [4, 5, 6]


def test_a_run_that_is_killed_at_every_phase_of_the_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    """One run is killed again and again, each time at the next phase that it reaches, now warm, now cold."""
    undisturbed = simulation_of(tmp_path / "quiet", 2)
    quiet = finish(undisturbed)
    simulation = simulation_of(tmp_path / "killed", 2)
    for (phase, iteration), cold in zip(places_of(undisturbed), itertools.cycle((False, False, True)), strict=False):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None, f"{phase} of iteration {iteration}"
    assert same_result(quiet, finish(simulation))
