"""The manifest of a run's inputs: the names in it, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.identity import identity
from yatt_core.spec.rewards.judges import JudgePart
from yatt_core.spec.run import RunSpec

INPUTS, MANIFEST, MODEL = "inputs", "manifest.json", "model"
TRAIN, HELD_OUT, PROBE = "train.parquet", "held_out.parquet", "probe.parquet"
GIVEN = "given_models"
"""Key of the manifest: models that the run is given besides its policy's and its judges'."""
JUDGES = "judges"
"""Key of the manifest, and folder of the trained judges' models."""
LONGEST = "longest_prompt"
"""Key of the manifest."""

Facts = dict[str, Any]


def read_manifest(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """The manifest of a run's inputs.

    Raises `DataError` if it cannot be read, `ConfigurationError` if the inputs were made for other data.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; put it back, or start a new run") from None
    if manifest.get("identity") != identity(spec):
        raise ConfigurationError(
            f"{folder}: the run's inputs were made for another seed, model, judge, teacher, critic or set of sources; "
            "these stay as they are within a run, start a new one"
        )
    return manifest


def model_path_of(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Where the initial model lies; empty for none."""
    return str((folder / manifest["model_path"]).resolve()) if manifest["model_path"] else ""


def judge_model_path(folder: Path, manifest: Mapping[str, Any], part: JudgePart) -> str | None:
    """Where a judge's model lies, absolute; None for a judge without one. folder: of the inputs."""
    made = manifest.get(JUDGES, {}).get(part.name)
    return None if made is None else str((folder / made["path"]).resolve())
