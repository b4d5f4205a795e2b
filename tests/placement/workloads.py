"""The described workloads of the placement benchmark, and small ones for tests."""

from __future__ import annotations

from typing import Any

from benchmarks.placement import FOLDER
from benchmarks.placement_files import read_workload
from yatt_core.placement.workload import Scenario

ENGINE = {
    "base_s": 0.006, "per_sequence_s": 1.5e-5, "per_context_token_s": 2.4e-8, "per_prompt_token_s": 3.1e-5,
    "max_concurrent": 32, "prefix_cache": True,
}  # fmt: skip


def described(name: str) -> Scenario:
    """Reads one of the eleven described workloads. name: the beginning of its file name."""
    (path,) = FOLDER.glob(f"{name}_*.yaml")
    return read_workload(path)


def small(devices: int = 4, **samples: Any) -> Scenario:
    """Returns a workload whose simulated collect takes a second or two."""
    lengths: dict[str, Any] = {"median": 200, "sigma": 0.6, "min": 16, "max": 2048}
    return Scenario.model_validate(
        {
            "name": "small", "seed": 5, "iterations": 2, "control_period_s": 0.5,
            "cluster": {"devices_per_instance": 1, "groups": [{"devices": devices}]},
            "engines": {"rollout": ENGINE, "judge": {**ENGINE, "template_tokens": 100}},
            "switch": {"role_s": 0.5, "repartition_s": 0.5, "train_s": 1.0},
            "training": {"fixed_s": 1.0, "device_seconds_per_token": 1e-4},
            "samples": {
                "prompts": 16, "group": 4, "prompt": {**lengths, "median": 100}, "response": {**lengths, "rho": 0.4},
                "judge": {**lengths, "median": 60}, **samples,
            },
        }
    )  # fmt: skip
