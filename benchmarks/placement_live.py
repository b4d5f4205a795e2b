"""Does the simulator predict reality? Runs described workloads under the real flow, controllers and dispatcher.

Consumes a described workload. Creates a spec whose virtual engines have its constants and length distributions, trains
it through `yatt train` on a clock that runs two and a half times as fast as wall time, and then lets the simulator
repeat the recorded work under the recorded actions. Produces both times of each iteration, and a third: the
simulator's prediction if the runtime policy acts freely in it. Part of `benchmarks.placement`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import progress, trained
from benchmarks.placement_files import read_workload
from benchmarks.placement_logged import LoggedRuntimePolicy, parse_action
from flows.placement.inputs import REMEMBERED
from yatt_core.placement.actions import KEEPS, LENDS, SERVES
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.records import setting_from_json, telemetry_from_json
from yatt_core.placement.seen import IterationTelemetry, Setting
from yatt_core.placement.simulation.campaign import collect
from yatt_core.placement.workload import EngineConstants, Scenario, value_at
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.spec.sections.placement import PlacementSpec

CLOCK_FACTOR = 2.5
ITERATIONS = 3
LIVE = (("w01_small_heavy_judge", 1), ("w09_uneven_devices", 1), ("w11_large_512", 8))
"""Workloads, and the divisor of their devices and prompts, which leaves at most 64 devices."""
MODE = "dynamic"


@dataclass(frozen=True, slots=True)
class LiveIteration:
    """The durations of an iteration's phases, in seconds.

    measured: collect, as recorded.
    simulated: collect in the simulator, under the same actions.
    foreseen: collect in the simulator, under the actions that the runtime policy takes there.
    training: the iteration's training.
    """

    measured: float
    simulated: float
    foreseen: float
    training: float

    @property
    def gap(self) -> float:
        """The error of the simulator under the same actions, relative to the iteration's time."""
        return abs(self.measured - self.simulated) / (self.simulated + self.training)

    @property
    def foresight_gap(self) -> float:
        """The error of the simulator under its own runtime policy's actions, relative to the iteration's time."""
        return abs(self.measured - self.foreseen) / (self.foreseen + self.training)


def live_runs(folder: Path) -> dict[str, list[LiveIteration]]:
    """Returns the iterations of each live workload of a folder, by name."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        return {name: live_iterations(folder, name, divisor, Path(home)) for name, divisor in LIVE}


def live_iterations(folder: Path, name: str, divisor: int, home: Path) -> list[LiveIteration]:
    """Trains a workload of a folder and simulates what was recorded."""
    workload = scaled_down(read_workload(folder / f"{name}.yaml"), divisor)
    spec = home / f"{name}.yaml"
    spec.write_text(yaml_text(spec_of(workload, home / f"{name}.jsonl")))
    progress(f"{name}: {len(workload.cluster.speeds)} instances, {ITERATIONS} iterations on a clock x {CLOCK_FACTOR:g}")
    trained(home / "runs", spec)
    run = home / "runs" / f"{spec_name(workload)}-1"
    return list(_compared(workload, run))


def _compared(workload: Scenario, run: Path) -> Iterator[LiveIteration]:
    """Compares each iteration with its record. A policy is a pure function, so a run's decisions follow from its
    records.
    """
    policy = find_policy(PlacementSpec(mode=MODE), constants_known=True)
    past: list[IterationTelemetry] = []
    state: dict[str, Any] = {}
    before = None
    training = workload.switch.train_s + workload.training.fixed_s
    for path in sorted((run / "placement").rglob("i*.json")):
        record = json.loads(path.read_text())
        telemetry = telemetry_from_json(record["telemetry"])
        setting = setting_from_json(record["setting"])
        plan = policy.plan(setting, past[-REMEMBERED:], state)
        if plan.roles != telemetry.roles:
            raise ValueError(f"{path}: the plan says {plan.roles}, the run began with {telemetry.roles}")
        simulated = collect(
            setting=setting,
            roles=plan.roles,
            runtime_policy=recorded_runtime_policy(record, setting),
            waves=telemetry.waves,
            before=before,
        )
        foreseen = collect(
            setting=setting, roles=plan.roles, runtime_policy=plan.runtime_policy, waves=telemetry.waves, before=before
        )
        tokens = sum(sample.prompt + sample.response for wave in telemetry.waves for sample in wave.samples)
        share = workload.training.device_seconds_per_token * tokens / workload.cluster.devices
        yield LiveIteration(telemetry.collect_s, simulated.collect_s, foreseen.collect_s, training + share)
        past = [*past, telemetry]
        state = plan.state
        before = plan.roles


def recorded_runtime_policy(record: Mapping[str, Any], setting: Setting) -> LoggedRuntimePolicy:
    """Returns the recorded actions, each moved to the start of its control period.

    In reality they came some milliseconds later.
    """
    period = setting.control_period_s
    lines = [line for line in record["actions"] if line["do"] not in (SERVES, KEEPS, LENDS)]
    return LoggedRuntimePolicy((line["t"] // period * period, parse_action(line, "the record")) for line in lines)


def scaled_down(workload: Scenario, divisor: int) -> Scenario:
    """Returns the same workload with fewer devices and prompts."""
    groups = tuple(g.model_copy(update={"devices": g.devices // divisor}) for g in workload.cluster.groups)
    return workload.model_copy(
        update={
            "cluster": workload.cluster.model_copy(update={"groups": groups}),
            "samples": workload.samples.model_copy(update={"prompts": workload.samples.prompts // divisor}),
        }
    )


def spec_name(workload: Scenario) -> str:
    """Returns a valid name for the workload's spec."""
    return workload.name.replace("_", "-")


def spec_of(workload: Scenario, prompts: Path) -> dict[str, Any]:
    """Returns a spec whose virtual engines have the workload's constants and length distributions.

    prompts: the file to which the prompts are written.
    """
    samples = workload.samples
    switch = workload.switch
    _write_prompts(workload, prompts)
    clock = {"clock_factor": CLOCK_FACTOR}
    judge = {
        "kind": "virtual", **clock, **_constants(workload.engines.judge),
        "median_tokens": value_at(samples.judge.median, 0), "sigma": value_at(samples.judge.sigma, 0),
    }  # fmt: skip
    rollout = {
        "kind": "virtual", **clock, **_constants(workload.engines.rollout),
        "instances": len(workload.cluster.speeds), "speeds": list(workload.cluster.speeds),
        "median_tokens": value_at(samples.response.median, 0), "sigma": value_at(samples.response.sigma, 0),
        "switch_seconds": switch.role_s, "repartition_seconds": switch.repartition_s,
    }  # fmt: skip
    return {
        "name": spec_name(workload),
        "seed": workload.seed,
        "iterations": ITERATIONS,
        "data": {
            "sources": [{"kind": "jsonl", "path": str(prompts), "prompt_field": "prompt", "answer_field": "answer"}],
            "prompts_per_iteration": samples.prompts, "logical_shards": 4, "held_out": 2, "probe": 2,
            "max_prompt_tokens": samples.prompt.max,
        },
        "rollout": {
            "engine": rollout, "samples_per_prompt": samples.group, "batch_samples": samples.group,
            "max_new_tokens": samples.response.max,
        },
        "rewards": {
            "parts": [
                {"name": "rule", "function": "virtual_score", "weight": 0},
                {
                    "name": "judge", "kind": "generative", "engine": judge, "template": "{prompt} {response}",
                    "max_new_tokens": samples.judge.max, "judgements": samples.judgements,
                },
            ],
            "correct_at": 0.5,
        },
        "placement": {"mode": MODE, "control_seconds": workload.control_period_s},
        "trainer": {"engine": {"kind": "virtual", "ranks": 2, "clock_factor": 1000.0}},
        "evaluation": {"every": 0},
        "tracking": {"enabled": False},
    }  # fmt: skip


def _constants(engine: EngineConstants) -> dict[str, Any]:
    return {
        "base_seconds": engine.base_s, "seconds_per_sequence": engine.per_sequence_s,
        "seconds_per_context_token": engine.per_context_token_s,
        "seconds_per_prompt_token": engine.per_prompt_token_s, "max_num_seqs": engine.max_concurrent,
    }  # fmt: skip


def _write_prompts(workload: Scenario, path: Path) -> None:
    """Writes texts of the workload's prompt lengths: a virtual run counts a byte as a token."""
    spec = workload.samples.prompt
    rng = np.random.default_rng(workload.seed)
    count = workload.samples.prompts * ITERATIONS + 8
    drawn = value_at(spec.median, 0) * np.exp(value_at(spec.sigma, 0) * rng.standard_normal(count))
    lengths = np.clip(np.rint(drawn), max(spec.min, 8), spec.max).astype(int)
    lines = ({"prompt": f"{number:06d} ".ljust(length, "x"), "answer": "a"} for number, length in enumerate(lengths))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
