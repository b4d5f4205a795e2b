"""Telemetry of an iteration: timings, devices, attempts; beside the experience, never in it.

Consumes and produces plain JSON values. Nothing here decides a result, so that a lost file is no loss and none is synced.
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
PREFIX, SUFFIX = "telemetry.", ".json"


def write_telemetry(run_folder: Path, branch: int, iteration: int, name: str, values: Mapping[str, Any]) -> None:
    """Writes (or replaces) one file of telemetry; name: who measured, such as a phase or an actor.

    A disk that refuses is said in the log, and no more.
    """
    folder = run_folder / iteration_folder(branch, iteration)
    path = folder / f"{PREFIX}{name}{SUFFIX}"
    temporary = durable.temporary_name(path)
    try:
        durable.make_folder(folder)
        temporary.write_text(json.dumps(values, sort_keys=True, indent=1) + "\n")
        temporary.rename(path)
    except (OSError, InfrastructureError) as error:
        _log.warning("telemetry is lost: %s", error)


def read_telemetry(run_folder: Path, branch: int, iteration: int) -> dict[str, dict[str, Any]]:
    """All telemetry of an iteration by name; empty where there is none. A file that a crash left damaged is as good as lost."""
    folder = run_folder / iteration_folder(branch, iteration)
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("telemetry is lost: %s: %s", path, error)
            continue
        if isinstance(values, dict):
            found[path.name.removeprefix(PREFIX).removesuffix(SUFFIX)] = values
        else:
            _log.warning("telemetry is lost: %s holds no JSON object", path)
    return found


def telemetry_figure(stages: object, key: str) -> float | None:
    """A figure of a shard's entry, from 0 on; None where the entry, for which nobody vouches, gives none."""
    figure = stages.get(key) if isinstance(stages, dict) else None
    return float(figure) if isinstance(figure, int | float) and 0.0 <= figure < math.inf else None
