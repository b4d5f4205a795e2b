"""Telemetry of an iteration (timings, devices, attempts), stored next to the experience and never in it.

Consumes and produces plain JSON values. No result depends on telemetry, so a lost file is harmless, and the files
are not synced.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yatt_core import durable
from yatt_core.errors import InfrastructureError
from yatt_core.keys import iteration_folder

_log = logging.getLogger(__name__)
PREFIX = "telemetry."
SUFFIX = ".json"
SCORES = "scores"
"""Key of a shard's entry: what some of its scores took, as `ScoreEffort`s."""


def write_telemetry(run_folder: Path, branch: int, iteration: int, name: str, values: Mapping[str, Any]) -> None:
    """Writes (or replaces) one telemetry file. A disk error is only logged.

    name: the source of the measurements, such as a phase or an actor.
    """
    folder = run_folder / iteration_folder(branch, iteration)
    path = folder / f"{PREFIX}{name}{SUFFIX}"
    temporary = durable.temporary_name(path)
    try:
        if not folder.exists():
            durable.make_folder(folder)  # where an iteration's experience will be
        temporary.write_text(json.dumps(values, sort_keys=True, indent=1) + "\n")
        temporary.rename(path)
    except (OSError, InfrastructureError) as error:
        _log.warning("telemetry lost: %s", error)


def read_telemetry(run_folder: Path, branch: int, iteration: int) -> dict[str, dict[str, Any]]:
    """Returns all telemetry of an iteration by name; empty if there is none. Files damaged by a crash are skipped."""
    folder = run_folder / iteration_folder(branch, iteration)
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
        values = _read(path)
        if values is not None:
            found[path.name.removeprefix(PREFIX).removesuffix(SUFFIX)] = values
    return found


def read_telemetry_file(run_folder: Path, branch: int, iteration: int, name: str) -> dict[str, Any] | None:
    """Returns one telemetry file; None if it does not exist or was damaged by a crash."""
    path = run_folder / iteration_folder(branch, iteration) / f"{PREFIX}{name}{SUFFIX}"
    return _read(path) if path.exists() else None


def _read(path: Path) -> dict[str, Any] | None:
    """Returns a file's values; None if it cannot be used, which is logged."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("telemetry lost: %s: %s", path, error)
        return None
    if isinstance(values, dict):
        return values
    _log.warning("telemetry lost: %s is not a JSON object", path)
    return None


def telemetry_figure(stages: object, key: str) -> float | None:
    """Returns a non-negative number from a shard's entry; None if the entry, which is not verified, lacks it."""
    figure = stages.get(key) if isinstance(stages, dict) else None
    return float(figure) if isinstance(figure, int | float) and 0.0 <= figure < math.inf else None
