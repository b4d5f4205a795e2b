"""The work of an iteration's samples, as a file in the run's folder.

A decision names its input files by their sha256, so a replay notices if they have changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core import durable
from yatt_core.digests import file_sha256
from yatt_core.errors import DataError
from yatt_core.placement.records import telemetry_from_json, telemetry_to_json
from yatt_core.placement.seen import IterationTelemetry


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """An iteration's work and seconds.

    actions: the log of all actions (see `yatt_core.placement.actions`), in order of time.
    """

    telemetry: IterationTelemetry
    actions: Sequence[Mapping[str, Any]]


def work_file(run_folder: Path, branch: int, iteration: int) -> Path:
    """Returns the path of an iteration's work file."""
    return run_folder / "placement" / f"b{branch:03d}" / f"i{iteration:06d}.json"


def write_work(path: Path, work: RecordedWork, setting: Mapping[str, Any]) -> str:
    """Writes the work durably, together with the setting of the pool that did the work; returns the file's sha256."""
    durable.make_folder(path.parent)
    body = {"telemetry": telemetry_to_json(work.telemetry), "actions": list(work.actions), "setting": dict(setting)}
    durable.write_file(path, json.dumps(body).encode())
    return file_sha256(path)


def load_work(path: Path, sha256: str) -> RecordedWork:
    """Reads the work from a file. Raises `DataError` if the file is missing, or its sha256 is not the recorded one."""
    if not path.is_file():
        raise DataError(f"{path} is missing")
    found = file_sha256(path)
    if found != sha256:
        raise DataError(f"{path} has changed: its sha256 is {found}, but {sha256} was recorded")
    body = json.loads(path.read_text())
    return RecordedWork(telemetry_from_json(body["telemetry"]), tuple(body["actions"]))
