"""What the keeper still has to deliver: `keeper.json` in the group's folder, published by rename after a round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from yatt_core.durable import write_json
from yatt_core.errors import InfrastructureError

NAME = "keeper.json"


@dataclass(frozen=True, slots=True)
class UndeliveredRows:
    """Undelivered rows of a run without a driver.

    failures: failed attempts in a row.
    reason: why the last attempt failed; empty before the first one.
    """

    run: str
    rows: int
    failures: int
    reason: str


def write_undelivered(folder: Path, runs: Sequence[UndeliveredRows]) -> None:
    """Publishes the undelivered rows."""
    write_json(folder / NAME, {"undelivered": [asdict(run) for run in runs]})


def read_undelivered(folder: Path) -> tuple[UndeliveredRows, ...]:
    """Returns what was left after the keeper's last round; empty before the first.

    Raises `InfrastructureError` for a damaged file.
    """
    file = folder / NAME
    try:
        return tuple(UndeliveredRows(**item) for item in json.loads(file.read_text())["undelivered"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{file}: not a valid state of the keeper ({error}); remove it") from None
