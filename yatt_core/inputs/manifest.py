"""The manifest of a run's inputs: its keys and how it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.identity import identity
from yatt_core.spec.rewards.judges import JudgePart
from yatt_core.spec.run import RunSpec

INPUTS = "inputs"
MANIFEST = "manifest.json"
MODEL = "model"
TRAIN = "train.parquet"
HELD_OUT = "held_out.parquet"
PROBE = "probe.parquet"
DEMONSTRATIONS = "demonstrations"
"""Manifest key of the number of demonstrations from each source, recorded if the spec leaves it to the data."""
GIVEN = "given_models"
"""Manifest key of the given models: those other than the policy's and the judges'."""
JUDGES = "judges"
"""Manifest key of the judges' models."""
START = "start"
"""Manifest key of the checkpoint with whose state a workload of one's own begins, and the folder of its copy."""
LONGEST = "longest_prompt"
"""Manifest key of the maximum prompt length."""

OVER_LONG = "over_long_prompts"
"""Manifest key of the number of prompts that were left out or cut because they were too long."""

Facts = dict[str, Any]


def read_manifest(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """Returns the manifest of a run's inputs.

    Raises `DataError` if it cannot be read, and `ConfigurationError` if the inputs were built for other data.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; restore it, or start a new run") from None
    if manifest.get("identity") != identity(spec):
        raise ConfigurationError(
            f"{folder}: the run's inputs were built for another seed, model, judge, teachers, critic, pools or set of sources; "
            "these cannot change within a run; start a new run"
        )
    return manifest


def model_path_of(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Returns the absolute path of the initial model; empty if there is none."""
    return str((folder / manifest["model_path"]).resolve()) if manifest["model_path"] else ""


def judge_model_path(manifest: Mapping[str, Any], part: JudgePart) -> str | None:
    """Returns the absolute path of a judge's model; None if the judge has none."""
    described = manifest.get(JUDGES, {}).get(part.name)
    return None if described is None else str(described["path"])
