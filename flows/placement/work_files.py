"""What the samples of an iteration took, as a file of the run: written once, and read for as long as somebody keeps it.

A decision names the files that it was made from by their sha256, so that planning it again with other numbers is noticed.
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
    """An iteration's work and seconds, and the log of all actions within it (see `placement.actions`), in order of time."""

    telemetry: IterationTelemetry
    actions: Sequence[Mapping[str, Any]]


def work_file(run_folder: Path, branch: int, iteration: int) -> Path:
    """Where an iteration's work is kept."""
    return run_folder / "placement" / f"b{branch:03d}" / f"i{iteration:06d}.json"


def write_work(path: Path, work: RecordedWork, setting: Mapping[str, Any]) -> str:
    """Writes the file, durably, with the setting of the pool that did the work; returns its sha256."""
    durable.make_folder(path.parent)
    body = {"telemetry": telemetry_to_json(work.telemetry), "actions": list(work.actions), "setting": dict(setting)}
    durable.write_file(path, json.dumps(body).encode())
    return file_sha256(path)


def load_work(path: Path, sha256: str) -> RecordedWork:
    """The work in a file. Raises `DataError` where it is gone, or is not what was recorded."""
    if not path.is_file():
        raise DataError(f"{path} is gone")
    found = file_sha256(path)
    if found != sha256:
        raise DataError(f"{path} is not what was recorded: its sha256 is {found}, and was {sha256}")
    body = json.loads(path.read_text())
    return RecordedWork(telemetry_from_json(body["telemetry"]), tuple(body["actions"]))
