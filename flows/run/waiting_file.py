"""What a driver waits for while the ledger itself is away: a file in the run's folder, for those who ask the run.

Consumes and produces `WaitingFile`. The file is there only while its driver waits.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from db.core.holder import Holder, is_gone
from yatt_core.durable import write_json

NAME = "waiting.json"
log = logging.getLogger("yatt_core.flow")


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """What a driver waits for. Times are milliseconds since 1970, by the driver's clock.

    holder: the driver's process.
    iteration: the last committed iteration that the driver knows; -1 before the first.
    returned_at: when the run gave its devices back; None while it holds them.
    """

    run: str
    dependency: str
    reason: str
    since: int
    next_try_at: int
    iteration: int
    holder: Holder
    returned_at: int | None = None


_FILE = TypeAdapter(WaitingFile)


def write_waiting(folder: Path, waiting: WaitingFile) -> None:
    """Writes the file. Raises `InfrastructureError` if the disk fails."""
    write_json(folder / NAME, asdict(waiting))


def read_waiting(folder: Path) -> WaitingFile | None:
    """Returns what the run's driver waits for; None if it waits for no ledger, or is gone."""
    try:
        found = _FILE.validate_json((folder / NAME).read_bytes())
    except (OSError, ValidationError):
        return None
    return None if is_gone(found.holder) else found


def forget_waiting(folder: Path) -> None:
    """Removes the file, if there is one and the disk permits it; a file that stays says nothing once its driver is gone."""
    try:
        (folder / NAME).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", folder / NAME, error)
