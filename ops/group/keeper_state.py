"""What the keeper still has to deliver, as it last said: `keeper.json` in the group's folder, published by rename."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from yatt_core.durable import write_json
from yatt_core.errors import InfrastructureError

NAME = "keeper.json"


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Rows of a run that nobody drives. failures: tries in a row that failed, for `reason`; empty before the first one."""

    run: str
    rows: int
    failures: int
    reason: str


def write_undelivered(folder: Path, runs: Sequence[Undelivered]) -> None:
    """Publishes what is left."""
    write_json(folder / NAME, {"undelivered": [asdict(run) for run in runs]})


def read_undelivered(folder: Path) -> tuple[Undelivered, ...]:
    """What was left when the keeper last looked; empty before its first look. Raises `InfrastructureError` for a damaged file."""
    file = folder / NAME
    try:
        return tuple(Undelivered(**item) for item in json.loads(file.read_text())["undelivered"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{file}: is no state of a keeper ({error}); remove it") from None
