"""Streamed learning in the product's loop with simulated actors: what overlaps, in which order, and kills at every phase."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.cluster import DriverKilled, Trainer
from benchmarks.simulation.trace import TRAINER
from flows.phases.gathering import SealedShard
from flows.phases.streaming import admission_so_far
from flows.run.results import RunResults, run_results
from tests.flows.simulated import SHARDS, BranchRunActors, Simulation
from tests.flows.tools import same_result
from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule, WaveGroups, admission_of
from yatt_core.protocols.receipts import BatchTask, GroupFacts, ShardReceipt, ShardTask

ITERATIONS = 3
PHASES = ("place", "collect", "prepare", "learn", "sync", "commit")
STREAMED = "asynchrony.streamed=true"
SAMPLES = 3


def simulation_of(folder: Path, *more: str) -> Simulation:
    return Simulation.of(folder, f"iterations={ITERATIONS}", "checkpoints.every=2", *more)


def finish(simulation: Simulation, cold: bool = False) -> RunResults:
    ended = simulation.drive(cold=cold)
    assert ended is not None and ended.state == "completed", ended
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        return run_results(ledger, simulation.run)


def test_the_trainer_learns_from_all_but_the_last_shard_while_engines_generate(tmp_path: Path) -> None:
    runs = [simulation_of(tmp_path / "apart"), simulation_of(tmp_path / "streamed", STREAMED)]
    results = [finish(simulation) for simulation in runs]
    assert same_result(*results), "it learns the same, in the same order"
    apart, streamed = (simulation.cluster.clock.seconds for simulation in runs)
    times = runs[0].cluster.trace.durations
    saved = ITERATIONS * (times.prepare + times.learn) * (SHARDS - 1) / SHARDS
    assert apart - streamed == pytest.approx(saved, rel=0.01)


def test_shards_that_are_sealed_out_of_turn_are_learnt_from_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = finish(simulation_of(tmp_path / "quiet", STREAMED))
    simulation = simulation_of(tmp_path / "shuffled", STREAMED)
    sent = list[tuple[int, int]]()
    collect = BranchRunActors.collect
    accumulate = BranchRunActors.accumulate

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        receipts = list(collect(actors, tasks, *given))
        yield from (receipts[place] for place in (1, 0, 3, 2))

    def accumulating(actors: BranchRunActors, task: BatchTask) -> None:
        if task.key.phase == "accumulate":
            sent.append((task.key.iteration, len(task.shards)))
        accumulate(actors, task)

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    monkeypatch.setattr(BranchRunActors, "accumulate", accumulating)
    assert same_result(quiet, finish(simulation))
    assert sent == [(iteration, count) for iteration in range(1, ITERATIONS + 1) for count in (2, 4)]


def test_a_run_that_is_killed_at_every_phase_and_between_shards_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is killed again and again, each time at the next place that it reaches, now warm, now cold."""
    quiet = finish(simulation_of(tmp_path / "quiet", STREAMED))
    simulation = simulation_of(tmp_path / "killed", STREAMED)
    struck = set[tuple[int, int]]()
    collect = BranchRunActors.collect

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        for receipt in collect(actors, tasks, *given):
            place = (receipt.key.iteration, receipt.key.shard)
            yield receipt
            if receipt.key.shard in (0, 2) and place not in struck:
                struck.add(place)
                raise DriverKilled

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    colds = itertools.cycle((False, False, True))
    for iteration in range(1, ITERATIONS + 1):
        for phase in ("place", "collect"):
            assert simulation.drive(f"{phase}:{iteration}", next(colds)) is None
        for shard in (0, 2):
            assert simulation.drive(cold=next(colds)) is None
            assert (iteration, shard) in struck
        for phase in ("prepare", "learn", "sync", "commit"):
            assert simulation.drive(f"{phase}:{iteration}", next(colds)) is None
    assert same_result(quiet, finish(simulation))


def test_ranks_that_are_lost_while_engines_generate_learn_again_from_what_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = finish(simulation_of(tmp_path / "quiet", STREAMED))
    simulation = simulation_of(tmp_path / "lost", STREAMED)
    lost = list[int]()
    collect = BranchRunActors.collect

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        for receipt in collect(actors, tasks, *given):
            if receipt.key.iteration == 2 and receipt.key.shard == 2 and not lost:
                lost.append(2)
                simulation.cluster.lost.add(TRAINER)
                simulation.cluster.trainer = Trainer()
            yield receipt

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    assert same_result(quiet, finish(simulation))
    assert lost == [2]


@pytest.mark.verify
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cold", [False, True])
def test_killed_in_any_phase_it_ends_with_the_same_bits(tmp_path: Path, phase: str, cold: bool) -> None:
    quiet = finish(simulation_of(tmp_path / "quiet", STREAMED))
    simulation = simulation_of(tmp_path / "killed", STREAMED)
    for iteration in range(1, ITERATIONS + 1):
        assert simulation.drive(f"{phase}:{iteration}", cold) is None
    assert same_result(quiet, finish(simulation, cold))


@given(st.lists(st.lists(st.integers(0, SAMPLES), min_size=1, max_size=3), min_size=1, max_size=4))
def test_what_the_first_shards_are_said_to_admit_is_what_the_wave_admits(scored: list[list[int]]) -> None:
    """scored: by shard and group, the number of responses that have a score."""
    sizes = [len(shard) for shard in scored]
    begins = [0, *itertools.accumulate(sizes)]
    rule = SamplingRule(target=sum(sizes), shards=len(scored), samples=SAMPLES, least_scored=2)
    shards = [
        SealedShard(
            row=None,  # type: ignore[arg-type]
            ordinals=tuple(range(begin, begin + len(groups))),
            facts=GroupFacts(
                (0.0,) * len(groups), (1.0,) * len(groups), (5,) * len(groups), (1,) * len(groups), tuple(groups)
            ),
        )
        for begin, groups in zip(begins, scored, strict=False)
    ]
    sampling = Sampling(rule)
    groups = WaveGroups.gather((shard.ordinals, shard.facts) for shard in shards)
    whole = admission_of([sampling.settle(sampling.plan(), groups, len(shards))])
    assert admission_so_far(rule, shards) == whole
    for count in range(1, len(shards)):
        part = admission_so_far(rule, shards[:count])
        first = begins[count]
        assert part.groups == tuple(group for group in whole.groups if group < first)
        assert part.padding == tuple(group for group in whole.padding if group < first)
