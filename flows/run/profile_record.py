"""The record of where an iteration's time went: a telemetry file beside the iteration's experience.

Consumes and produces `ProfileRecord`. No result depends on it; iterations of earlier versions have none. A part is one
line of its process: its phase and path, its kind, its seconds and how often it ended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yatt_core.errors import DataError
from yatt_core.experience.telemetry import read_telemetry_file, write_telemetry
from yatt_core.spent_time import KINDS

NAME = "profile"
DRIVER = "driver"
BETWEEN = "between phases"
PHASES = (
    "sft", "place", "collect", "begin_ahead", "prepare", "learn", "collect_ahead", "sync", "evaluate", "checkpoint", "commit",
    BETWEEN,
)  # fmt: skip
"""The parts of an iteration, in their order."""
SEPARATOR = ";"
KIND_SEPARATOR = "|"
DIGITS = 6
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProfilePart:
    """A part of a process's work in a phase.

    path: the names of the parts around it within the phase, the outermost first, and its own; may be empty.
    kind: one of `yatt_core.spent_time.KINDS`.
    calls: how often it ended.
    """

    phase: str
    path: tuple[str, ...]
    kind: str
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True)
class Others:
    """Processes of a role that are not recorded one by one.

    count: how many they are.
    parts: the means of their parts.
    """

    count: int
    parts: tuple[ProfilePart, ...]


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """Where the time of one iteration went.

    wall: seconds since the commit before, or since the actors were ready.
    processes: the parts of each process that has reported, by its name, but for those among the others.
    others: of roles with many processes, those that were not the busiest, by role (`flows.run.profile_merging`).
    """

    wall: float
    processes: Mapping[str, tuple[ProfilePart, ...]]
    others: Mapping[str, Others] = field(default_factory=dict)


def role_of(process: str) -> str:
    """Returns the role of a process, such as `trainer` of `trainer-0`."""
    return process.partition("-")[0]


def write_profile(run_folder: Path, branch: int, iteration: int, record: ProfileRecord) -> None:
    """Writes an iteration's record. A disk error is only logged."""
    values: dict[str, Any] = {
        "wall": round(record.wall, DIGITS),
        "processes": {name: _encoded(parts) for name, parts in record.processes.items()},
    }
    if record.others:
        values["others"] = {
            role: {"count": others.count, "parts": _encoded(others.parts)} for role, others in record.others.items()
        }
    write_telemetry(run_folder=run_folder, branch=branch, iteration=iteration, name=NAME, values=values)


def read_profile(run_folder: Path, branch: int, iteration: int) -> ProfileRecord | None:
    """Returns an iteration's record; None if there is none, or if the file is damaged, which is logged."""
    values = read_telemetry_file(run_folder, branch, iteration, NAME)
    if values is None:
        return None
    try:
        processes = {name: tuple(_decoded(lines)) for name, lines in values["processes"].items()}
        others = {role: _others(found) for role, found in values.get("others", {}).items()}
        return ProfileRecord(_number(values["wall"]), processes, others)
    except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("the profile of iteration %d is damaged: %r", iteration, error)
        return None


def _encoded(parts: Iterable[ProfilePart]) -> dict[str, str]:
    """Returns a line for each part. Texts, because a list of JSON would take a line for each of its numbers."""
    sums: dict[str, tuple[float, int]] = {}
    for part in parts:
        key = f"{SEPARATOR.join((part.phase, *part.path))}{KIND_SEPARATOR}{part.kind}"
        seconds, calls = sums.get(key, (0.0, 0))
        sums[key] = (seconds + part.seconds, calls + part.calls)
    return {key: f"{seconds:.{DIGITS}f} {calls}" for key, (seconds, calls) in sums.items()}


def _decoded(lines: Mapping[str, str]) -> Iterable[ProfilePart]:
    for key, figures in lines.items():
        names, _, kind = key.rpartition(KIND_SEPARATOR)
        phase, *path = names.split(SEPARATOR)
        seconds, calls = figures.split()
        if kind not in KINDS or phase not in PHASES:
            raise DataError(f"unknown part {key!r}")
        yield ProfilePart(phase=phase, path=tuple(path), kind=kind, seconds=_number(float(seconds)), calls=int(calls))


def _others(found: Mapping[str, Any]) -> Others:
    """Returns the others of a role. Raises `DataError` if there are none."""
    count = int(found["count"])
    if count < 1:
        raise DataError(f"{count} others")
    return Others(count, tuple(_decoded(found["parts"])))


def _number(value: Any) -> float:
    """Returns a value as seconds. Raises `DataError` if it is negative or not finite."""
    seconds = float(value)
    if not 0.0 <= seconds < math.inf:
        raise DataError(f"{value!r} is no number of seconds")
    return seconds
