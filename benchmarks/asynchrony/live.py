"""Does the simulator predict whole iterations of modes? Trains scaled-down workloads for real, and simulates what they drew.

Consumes described workloads. Creates specs whose virtual engines have a workload's constants and lengths, and a trainer with its
costs, trains them through `yatt train` on a clock that runs faster than wall time, and has the simulator repeat the recorded
responses, round by round. Produces both times from one commit to the next. The workloads' judges are left out: responses that go
on are not judged, and `benchmarks.placement` has the same comparison with judges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.common import progress, trained
from benchmarks.placement_files import read_workload
from benchmarks.placement_live import scaled_down, spec_of
from db.ledger import Ledger
from flows.run.home import Home
from yatt_core.dispatch.pool import pool_setting
from yatt_core.experience.slicing import SLICES, RoundOutcome, RoundPlan
from yatt_core.placement.actions import ROLLOUT
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import Setting
from yatt_core.placement.simulation.campaign import collect
from yatt_core.placement.simulation.overlap import Learner
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.placement.workload import Scenario
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.reading.documents import yaml_text

CLOCK_FACTOR = 2.5
ITERATIONS = 7
FIRST = 3
"""The first compared iteration: by then a run is filled. The last one is not compared either, since it ends the run."""


@dataclass(frozen=True, slots=True)
class LiveMode:
    """A workload under a mode. divisor: of its devices and prompts. changes: to its spec, by section."""

    workload: str
    divisor: int
    changes: Mapping[str, Mapping[str, Any]]


LIVE: Mapping[str, LiveMode] = {
    "lag1": LiveMode("w01_small_heavy_judge", 1, {"asynchrony": {"lag": 1}}),
    "slices": LiveMode("w03_very_long_tail", 4, {"rollout": {"slice_tokens": 8192, "max_slices": 8, "in_flight": 64}}),
    "tail": LiveMode(
        "w03_very_long_tail", 4, {"rollout": {"tail": {"factor": 1.5, "step_tokens": 8192, "max_iterations": 8}}}
    ),
}


@dataclass(frozen=True, slots=True)
class LiveIteration:
    """Seconds from the commit before to an iteration's own, on the engines' clock.

    measured: in the run.
    simulated: of the same responses in the simulator.
    """

    measured: float
    simulated: float

    @property
    def gap(self) -> float:
        """The simulator's error relative to its time."""
        return abs(self.measured - self.simulated) / self.simulated


def live_modes(folder: Path, modes: Mapping[str, LiveMode] = LIVE) -> dict[str, list[LiveIteration]]:
    """Returns the compared iterations of each mode. folder: of the described workloads."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        return {name: live_iterations(folder, name, mode, Path(home)) for name, mode in modes.items()}


def live_iterations(folder: Path, name: str, mode: LiveMode, home: Path) -> list[LiveIteration]:
    """Trains a workload under a mode and simulates what was recorded."""
    workload = scaled_down(read_workload(folder / f"{mode.workload}.yaml"), mode.divisor)
    tree = live_spec(workload, name, mode, home / f"{name}.jsonl")
    file = home / f"{name}.yaml"
    file.write_text(yaml_text(tree), encoding="utf-8")
    progress(f"{name}: {len(workload.cluster.speeds)} instances, {ITERATIONS} iterations on a clock x {CLOCK_FACTOR:g}")
    trained(home / "runs", file)
    with Ledger.open(Home(home / "runs").ledger) as ledger:
        return list(compared(ledger, home / "runs" / f"{name}-1", parse_spec(tree, name)))


def live_spec(workload: Scenario, name: str, mode: LiveMode, prompts: Path) -> dict[str, Any]:
    """Returns a spec whose virtual engines and trainer have the workload's constants; its judges are left out.

    prompts: the file to which the prompts are written.
    """
    tree = spec_of(workload, prompts)
    training = workload.training
    trainer = {
        "kind": "virtual",
        "ranks": 1,
        "clock_factor": CLOCK_FACTOR,
        "fixed_seconds": training.fixed_s,
        "seconds_per_token": training.device_seconds_per_token / workload.cluster.devices,
    }
    tree |= {
        "name": name,
        "iterations": ITERATIONS,
        "rewards": {"parts": [{"name": "rule", "function": "virtual_score"}]},
        "placement": {"mode": "colocate"},
        "trainer": {"engine": trainer},
        "controllers": {"count": 1},
        "checkpoints": {"every": 1000},
    }
    return tree | {section: {**tree.get(section, {}), **values} for section, values in mode.changes.items()}


def compared(ledger: Ledger, run: Path, spec: RunSpec) -> Iterator[LiveIteration]:
    """Yields the compared iterations of a run that has ended. run: its folder, named after it, with all of its samples."""
    setting = pool_setting(spec)
    trainer = spec.trainer.engine
    assert trainer.kind == "virtual"
    learner = Learner(trainer.fixed_seconds, trainer.seconds_per_token)
    lag = spec.asynchrony.lag
    drawn = drawn_by_iteration(ledger, run, spec)
    took = dict(ledger.metrics.history(run.name, "seconds/iteration"))
    for number in range(FIRST, spec.iterations - max(1, lag) + 1):
        learning = learner.seconds(drawn[number].learnt)
        collecting = collect_seconds(setting, drawn[number + lag].rounds)
        simulated = max(collecting, learning) if lag else collecting + learning
        yield LiveIteration(took[number] * trainer.clock_factor, simulated)


def collect_seconds(setting: Setting, waves: Sequence[WaveWork]) -> float:
    """Returns the seconds of an iteration whose instances all roll out."""
    roles = ROLLOUT * len(setting.speeds)
    return collect(setting=setting, roles=roles, runtime_policy=Hold(), waves=waves, before=roles).collect_s


@dataclass(frozen=True, slots=True)
class Drawn:
    """An iteration's work. rounds: what its engines drew. learnt: response tokens that it learnt from."""

    rounds: list[WaveWork]
    learnt: int


def drawn_by_iteration(ledger: Ledger, run: Path, spec: RunSpec) -> dict[int, Drawn]:
    """Returns what each iteration drew, as the sealed samples and, of rounds, the ledger say."""
    samples = {number: _samples_of(run, number) for number in range(1, spec.iterations + 1)}
    prompts = {ordinal: prompt for rows in samples.values() for ordinal, prompt, _ in rows}
    return {
        number: _rounds_of(ledger, run.name, number, prompts) if spec.sliced else _whole(rows)
        for number, rows in samples.items()
    }


def _samples_of(run: Path, iteration: int) -> list[tuple[int, int, int]]:
    """Returns the prompt's ordinal, and the tokens of prompt and response, of each sample that an iteration completed."""
    files = sorted((run / f"experience/b000/i{iteration:06d}").glob("w*/samples.parquet"))
    columns = ["prompt_ordinal", "prompt_tokens", "response_tokens"]
    rows = [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]
    return [(row["prompt_ordinal"], len(row["prompt_tokens"]), len(row["response_tokens"])) for row in rows]


def _whole(rows: Sequence[tuple[int, int, int]]) -> Drawn:
    """Returns the work of an iteration of whole responses."""
    groups: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    for ordinal, prompt, response in rows:
        groups.setdefault(ordinal, (prompt, []))[1].append((0, response))
    return Drawn([wave_of([groups[ordinal] for ordinal in sorted(groups)])], sum(response for *_, response in rows))


def _rounds_of(ledger: Ledger, run: str, iteration: int, prompts: Mapping[int, int]) -> Drawn:
    """Returns the work of an iteration's rounds. prompts: tokens by ordinal."""
    rounds: list[WaveWork] = []
    learnt = 0
    for row in ledger.records.waves(run, 0, iteration):
        assert row.outcome is not None, "the run has ended"
        outcome = RoundOutcome.from_json(dict(row.outcome[SLICES]))
        groups = []
        for group in RoundPlan.from_json(dict(row.plan[SLICES])).groups:
            after = outcome.drawn[group.ref.ordinal].lengths
            before = group.lengths or (0,) * len(after)
            responses = [(had, has - had) for had, has in zip(before, after, strict=True)]
            groups.append((prompts[group.ref.ordinal], responses))
        if groups:
            rounds.append(wave_of(groups))
        learnt += sum(sum(group.lengths) for group in outcome.learnt or ())
    return Drawn(rounds, learnt)


def wave_of(groups: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> WaveWork:
    """Returns a round's work.

    groups: of each, the tokens of its prompt, and of each of its responses those before the round and the new ones.

    A response that goes on reads its prompt and its tokens again; the first responses to a prompt share one reading of it.
    """
    samples = [
        SampleWork(
            group=number,
            first=before > 0 or place == 0,
            prompt=prompt + before,
            turns=(new,),
            waits=(),
            judge=(),
        )
        for number, (prompt, responses) in enumerate(groups)
        for place, (before, new) in enumerate(responses)
        if new
    ]
    return WaveWork(tuple(samples), (True,) * len(groups))
