"""Slices in the product's loop with simulated actors: what is learnt from, what goes on, and kills at every phase."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from benchmarks.simulation.files import length_of
from flows.branching.branches import open_branch, operator_lease, revise
from flows.branching.restore_points import RestorePoints
from flows.branching.spec_changes import PastSpecs
from flows.run.control_state import ControlState
from flows.run.creation import current_spec
from flows.run.results import RunResults, run_results
from ops.queries.groups import groups
from ops.queries.rollouts import rollouts
from ops.queries.sample_filters import Selection
from ops.terminal.experience import samples_table
from tests.flows.simulated import Simulation
from tests.flows.tools import same_result
from tests.matrix import in_verify
from yatt_core.errors import ConfigurationError
from yatt_core.experience.carried import CARRIED_FILE
from yatt_core.experience.slicing import SLICES, RoundOutcome, StartedGroup
from yatt_core.keys import iteration_folder
from yatt_core.spec import RunSpec

ITERATIONS = 8
SLICED = (
    "rollout.slice_tokens=3",
    "rollout.max_slices=4",
    "rollout.in_flight=10",
    "data.prompts_per_iteration=4",
    f"iterations={ITERATIONS}",
    "checkpoints.every=3",
)


def simulation_of(folder: Path, *more: str) -> Simulation:
    return Simulation.of(folder, *SLICED, *more)


def finish(simulation: Simulation, cold: bool = False) -> RunResults:
    ended = simulation.drive(cold=cold)
    assert ended is not None and ended.state == "completed", ended
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        return run_results(ledger, simulation.run)


def states_of(simulation: Simulation) -> list[ControlState]:
    with simulation.ledger() as ledger:
        last = ledger.runs.find(simulation.run).iteration
        commits = [ledger.commits.at(simulation.run, i) for i in range(1, last + 1)]
    return [ControlState.from_json(commit.state) for commit in commits if commit is not None]


def learnt_of(simulation: Simulation, iterations: int = ITERATIONS, branch: int = 0) -> list[tuple[StartedGroup, ...]]:
    with simulation.ledger() as ledger:
        rows = [ledger.records.waves(simulation.run, branch, i)[-1] for i in range(1, iterations + 1)]
    outcomes = [RoundOutcome.from_json(dict(row.outcome or {})[SLICES]) for row in rows]
    return [outcome.learnt or () for outcome in outcomes]


def spec_of(simulation: Simulation) -> RunSpec:
    with simulation.ledger() as ledger:
        return current_spec(ledger, simulation.run)


def places_of(simulation: Simulation) -> list[tuple[str, int]]:
    """Returns the phases that a run went through, with their iterations, in order."""
    with simulation.ledger() as ledger:
        attempts = [row for i in range(1, ITERATIONS + 1) for row in ledger.phases.attempts(simulation.run, 0, i)]
    return [(row.phase, row.iteration) for row in sorted(attempts, key=lambda row: row.planned_at)]


def test_every_group_that_is_started_is_learnt_from_once_with_all_of_its_tokens(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path)
    finish(simulation)
    learnt = learnt_of(simulation)
    assert [len(groups) for groups in learnt] == [4] * ITERATIONS
    ordinals = [group.ref.ordinal for groups in learnt for group in groups]
    assert sorted(ordinals) == list(range(4 * ITERATIONS))
    assert all(group.lengths == (length_of(group.ref.ordinal),) for groups in learnt for group in groups)
    states = states_of(simulation)
    assert states[-1].carried == ()
    assert max(len(state.carried) for state in states) == 6
    stale = [i - group.iteration for i, groups in enumerate(learnt, start=1) for group in groups]
    spec = spec_of(simulation)
    assert 0 < max(stale) <= spec.carry_span
    with simulation.ledger() as ledger:
        means = [value for _, value in ledger.metrics.history(simulation.run, "length/response_mean")]
        staleness = [value for _, value in ledger.metrics.history(simulation.run, "staleness/max")]
        mean_staleness = [value for _, value in ledger.metrics.history(simulation.run, "staleness/mean")]
    assert means == [sum(length_of(group.ref.ordinal) for group in groups) / 4 for groups in learnt]
    assert staleness == [max(i - group.iteration for group in groups) for i, groups in enumerate(learnt, start=1)]
    assert all(0 <= mean <= most for mean, most in zip(mean_staleness, staleness, strict=True))


def test_a_run_that_is_killed_at_every_phase_of_the_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    """One run is killed again and again, each time at the next phase that it reaches, now warm, now cold."""
    undisturbed = simulation_of(tmp_path / "quiet", "iterations=4")
    quiet = finish(undisturbed)
    simulation = simulation_of(tmp_path / "killed", "iterations=4")
    for (phase, iteration), cold in zip(places_of(undisturbed), itertools.cycle((False, False, True)), strict=False):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None, f"{phase} of iteration {iteration}"
    assert same_result(quiet, finish(simulation))


@pytest.mark.parametrize("lag", [1, *in_verify(0)])
def test_shards_that_responses_go_on_from_are_made_again_under_the_weights_of_then(tmp_path: Path, lag: int) -> None:
    """What waits, what goes on, and what that was made from are damaged together."""
    more = (f"asynchrony.lag={lag}",)
    quiet = finish(simulation_of(tmp_path / "quiet", *more))
    simulation = simulation_of(tmp_path / "damaged", *more)
    assert simulation.drive("learn:6") is None
    state = states_of(simulation)[-1]
    folder = simulation.home.run_folder(simulation.run)
    with simulation.ledger() as ledger:
        rows = [row for i in (3, 4, 5) for row in ledger.records.shards(simulation.run, 0, i)]
    assert {group.sealed.iteration for group in state.carried if group.sealed} & {5}
    for row in rows:
        (folder / row.folder / CARRIED_FILE).write_bytes(b"lost")
        simulation.cluster.sealed = {
            key: receipt for key, receipt in simulation.cluster.sealed.items() if receipt.folder != row.folder
        }
    assert same_result(quiet, finish(simulation, cold=True))
    with simulation.ledger() as ledger:
        made = [link.body["iteration"] for link in ledger.events.of_kind(simulation.run, "shard_regenerated")]
    assert 5 in made
    assert made == sorted(made)


def test_a_branch_draws_what_was_in_flight_anew(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path)
    finish(simulation)
    carried = states_of(simulation)[3 - 1].carried
    assert carried
    with simulation.ledger() as ledger, operator_lease(ledger, simulation.run, "a test") as lease:
        open_branch(ledger=ledger, fence=lease.fence, spec=current_spec(ledger, simulation.run), at=3, reason="a test")
    finish(simulation)
    with simulation.ledger() as ledger:
        outcomes = [
            RoundOutcome.from_json(dict(ledger.records.waves(simulation.run, 1, i)[-1].outcome or {})[SLICES])
            for i in range(4, ITERATIONS + 1)
        ]
    learnt = {group.ref.ordinal: group for outcome in outcomes for group in outcome.learnt or ()}
    assert {learnt[group.ref.ordinal].iteration for group in carried} == {4}
    before = {group.ref.ordinal for groups in learnt_of(simulation, 3) for group in groups}
    assert sorted(before | learnt.keys()) == list(range(4 * ITERATIONS))
    # A fork at a checkpoint has nothing of what was sealed before it either.
    folder = simulation.home.run_folder(simulation.run)
    for iteration in range(1, 4):
        shutil.rmtree(folder / iteration_folder(0, iteration))
    with simulation.ledger() as ledger:
        spec = current_spec(ledger, simulation.run)
        points = RestorePoints(ledger, folder, simulation.run, 1)
        assert 5 in points.within(lambda _: spec, PastSpecs(ledger))
        assert points.base(5, spec, PastSpecs(ledger)).iteration == 3


def test_a_raised_target_goes_on_with_what_is_in_flight_and_slices_stay_as_they_are(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path)
    assert simulation.drive(until=4) is not None
    assert states_of(simulation)[-1].carried
    for change in ("rollout.slice_tokens=5", "rollout.in_flight=12", "data.prompts_per_iteration=3"):
        with pytest.raises(ConfigurationError, match="cannot change during a run"):
            revise(simulation.home, simulation.run, [change])
    revise(simulation.home, simulation.run, [f"iterations={ITERATIONS + 2}", "rollout.engine.instances=3"])
    finish(simulation)
    learnt = learnt_of(simulation, ITERATIONS + 2)
    assert sorted(group.ref.ordinal for groups in learnt for group in groups) == list(range(4 * (ITERATIONS + 2)))


def test_an_iteration_that_draws_nothing_can_be_restored_and_shown(tmp_path: Path) -> None:
    """All that it learns from was complete before it."""
    simulation = simulation_of(tmp_path, "rollout.slice_tokens=64", "rollout.in_flight=12", "iterations=5")
    finish(simulation)
    run = simulation.run
    with simulation.ledger() as ledger:
        assert [len(ledger.records.shards(run, 0, i)) > 0 for i in range(1, 6)] == [True, True, True, False, False]
        points = RestorePoints(ledger, simulation.home.run_folder(run), run, 0)
        past = PastSpecs(ledger)
        spec = current_spec(ledger, run)
        assert points.base(4, spec, past).iteration == 3
        page = rollouts(ledger, simulation.home, run, 4, Selection())
        assert (page.total, page.samples) == (0, ())
        assert groups(ledger, simulation.home, run, 4, Selection()).groups == ()
        assert samples_table(ledger, simulation.home, run, 4).num_rows == 0
        assert 4 in points.within(lambda _: spec, past)


@pytest.mark.verify
@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize(
    "phase", ["place", "collect", "begin_ahead", "prepare", "learn", "collect_ahead", "sync", "commit"]
)
@pytest.mark.parametrize("cold", [False, True])
def test_killed_in_any_phase_it_ends_with_the_same_bits(tmp_path: Path, lag: int, phase: str, cold: bool) -> None:
    """Killed at the beginning of the phase of the first, a middle and the last iteration that has it."""
    more = (f"asynchrony.lag={lag}",)
    undisturbed = simulation_of(tmp_path / "quiet", *more)
    quiet = finish(undisturbed)
    iterations = [iteration for each, iteration in places_of(undisturbed) if each == phase]
    if not iterations:
        assert not lag, "the phases of a lag"
        return
    simulation = simulation_of(tmp_path / "killed", *more)
    for iteration in sorted({iterations[0], iterations[len(iterations) // 2], iterations[-1]}):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None
    assert same_result(quiet, finish(simulation, cold))
