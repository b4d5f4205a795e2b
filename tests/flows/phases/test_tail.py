"""A tail in the product's loop with simulated actors: what is learnt from, metrics, kills at every phase, and over-dispatch."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from benchmarks.simulation.files import length_of
from db.write.records import WaveRow
from flows.branching.branches import operator_lease
from flows.phases.sealed_groups import learnt_references
from flows.run.results import RunResults
from tests.flows.phases.test_slices import finish, learnt_of, places_of, spec_of, states_of
from tests.flows.simulated import Simulation
from tests.flows.tools import same_result
from tests.matrix import in_verify
from yatt_core.experience.carried import CARRIED_FILE
from yatt_core.experience.dynamic_sampling import WavePlan
from yatt_core.experience.slicing import StartedGroup
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import PromptRef, ShardPlace

ITERATIONS = 8
FACTOR = 1.5
PLAIN = ("data.prompts_per_iteration=4", f"iterations={ITERATIONS}", "checkpoints.every=3")


def tail_of(step_tokens: int = 4) -> str:
    return f"rollout.tail={{factor: {FACTOR}, step_tokens: {step_tokens}, max_iterations: 3}}"


def simulation_of(folder: Path, *more: str, step_tokens: int = 4) -> Simulation:
    return Simulation.of(folder, *PLAIN, tail_of(step_tokens), *more)


def series_of(simulation: Simulation, metric: str) -> list[float]:
    with simulation.ledger() as ledger:
        return [value for _, value in ledger.metrics.history(simulation.run, metric)]


def test_every_group_that_is_begun_is_learnt_from_once_and_the_short_ones_first(tmp_path: Path) -> None:
    simulation = simulation_of(tmp_path)
    finish(simulation)
    learnt = learnt_of(simulation)
    assert sorted(group.ref.ordinal for groups in learnt for group in groups) == list(range(4 * ITERATIONS))
    assert sorted(length_of(group.ref.ordinal) for group in learnt[0]) == sorted(length_of(n) for n in range(6))[:4]
    assert all(group.lengths == (length_of(group.ref.ordinal),) for groups in learnt for group in groups)
    spec = spec_of(simulation)
    stale = [i - group.iteration for i, groups in enumerate(learnt, start=1) for group in groups]
    assert 0 < max(stale) <= spec.carry_span == 2 + 1
    states = states_of(simulation)
    assert states[-1].carried == ()
    assert series_of(simulation, "length/response_mean") == [
        sum(length_of(group.ref.ordinal) for group in groups) / 4 for groups in learnt
    ]
    bias = series_of(simulation, "tail/length_bias")
    assert bias == [state.learnt_lengths.bias(state.carried) for state in states]
    assert bias[0] < 0.8 and bias[-1] == 1.0, "the long ones are late, and none is lost"
    assert max(series_of(simulation, "staleness/max")) == max(stale)


def test_how_far_engines_draw_at_a_time_decides_nothing_but_the_waste(tmp_path: Path) -> None:
    simulations = {step: simulation_of(tmp_path / str(step), step_tokens=step) for step in (1, 3, 64)}
    for simulation in simulations.values():
        finish(simulation)
    learnt = {
        step: [[(group.ref.ordinal, group.completed, group.lengths) for group in groups] for groups in learnt_of(each)]
        for step, each in simulations.items()
    }
    assert learnt[1] == learnt[3] == learnt[64]
    wasted = {step: sum(series_of(each, "tail/thrown_away_tokens")) for step, each in simulations.items()}
    assert wasted[1] == 0 < wasted[3] < wasted[64]
    rounds = {step: sum(series_of(each, "slices/rounds")) for step, each in simulations.items()}
    assert rounds[1] > rounds[3] > rounds[64] == ITERATIONS


def test_a_run_that_is_killed_at_every_phase_of_the_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed = simulation_of(tmp_path / "quiet", "iterations=4")
    quiet = finish(undisturbed)
    simulation = simulation_of(tmp_path / "killed", "iterations=4")
    for (phase, iteration), cold in zip(places_of(undisturbed), itertools.cycle((False, False, True)), strict=False):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None, f"{phase} of iteration {iteration}"
    assert same_result(quiet, finish(simulation))


@pytest.mark.parametrize("lag", [1, *in_verify(0)])
def test_shards_of_which_a_part_was_thrown_away_are_made_again(tmp_path: Path, lag: int) -> None:
    more = (f"asynchrony.lag={lag}",)
    quiet = finish(simulation_of(tmp_path / "quiet", *more))
    simulation = simulation_of(tmp_path / "damaged", *more)
    assert simulation.drive("learn:6") is None
    assert any(group.kept is not None for group in states_of(simulation)[-1].carried)
    folder = simulation.home.run_folder(simulation.run)
    with simulation.ledger() as ledger:
        rows = [row for i in (3, 4, 5) for row in ledger.records.shards(simulation.run, 0, i)]
    for row in rows:
        (folder / row.folder / CARRIED_FILE).write_bytes(b"lost")
        simulation.cluster.sealed = {
            key: receipt for key, receipt in simulation.cluster.sealed.items() if receipt.folder != row.folder
        }
    assert same_result(quiet, finish(simulation, cold=True))


def test_a_group_is_read_from_the_shard_from_which_it_is_learnt() -> None:
    """What waited at an iteration's end lies beside what was thrown away there, and both may be learnt from together."""

    @dataclass(frozen=True)
    class Sealed:
        folder: str
        manifest_sha256: str = ""

    waited = ShardPlace(1, 0, 0)
    went_on = ShardPlace(2, 0, 0)
    learnt = [
        StartedGroup(PromptRef(4, 0, 4), 1, waited, (1, 0, 9), kept=9),
        StartedGroup(PromptRef(5, 0, 5), 1, went_on, (2, 0, 3), kept=12),
        StartedGroup(PromptRef(6, 0, 6), 2, went_on, (2, 0, 3), kept=3),
    ]
    shards = learnt_references(learnt, {went_on: Sealed("later"), waited: Sealed("first")})
    assert [(shard.folder, shard.without) for shard in shards] == [("first", (5,)), ("later", ())]


def test_overdispatch_is_the_same_and_repeats_its_bits(tmp_path: Path) -> None:
    cut = (*PLAIN, f"dynamic_sampling.overdispatch={{factor: {FACTOR}}}")
    whole = Simulation.of(tmp_path / "whole", *cut)
    quiet = finish(whole)
    assert spec_of(whole).is_exact
    killed = Simulation.of(tmp_path / "killed", *cut)
    for place in ("collect:2", "learn:3", "sync:5"):
        assert killed.drive(place) is None
    assert same_result(quiet, finish(killed))
    named = Simulation.of(tmp_path / "named", *PLAIN, f"rollout.tail={{factor: {FACTOR}}}")
    assert digests_of(finish(named)) == digests_of(quiet)
    assert series_of(whole, "tail/length_bias")[-1] == 1.0


def digests_of(results: RunResults) -> list[str | None]:
    return [results.weights_digest, results.metrics_digest]


def test_an_iteration_that_an_earlier_version_began_whole_ends_whole_and_the_next_has_a_tail(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *PLAIN, f"dynamic_sampling.overdispatch={{factor: {FACTOR}}}")
    plan = WavePlan(wave=0, wanted=4, prompts=6, shards=4, gap=4, average=1.0)
    start = Cursor.start(spec_of(simulation).data)
    with simulation.ledger() as ledger, operator_lease(ledger, simulation.run, "a test") as lease:
        body = asdict(plan) | {"cursor": start.to_json()}
        ledger.records.wave(lease.fence, WaveRow(0, 1, 0, body))
    finish(simulation)
    with simulation.ledger() as ledger:
        waves = [ledger.records.waves(simulation.run, 0, i) for i in (1, 2)]
        assert len(waves[0]) == 1 and (waves[0][0].outcome or {})["admitted"] == [0, 1, 2, 3]
        assert sum(row.samples for row in ledger.records.shards(simulation.run, 0, 1)) == 6, "it waits for what it drew"
    assert "slices" in waves[1][0].plan
    assert series_of(simulation, "tail/length_bias")[-1] == 1.0


@pytest.mark.verify
@pytest.mark.parametrize("lag", [0, 1])
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
