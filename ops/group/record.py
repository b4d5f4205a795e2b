"""Who holds the group and at which ports it serves: `group.json` in the group's folder, published by rename.

Written by `yatt up`, read by `yatt up`, `yatt down` and `yatt status` of any terminal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.group.members import Ports
from yatt_core.durable import write_json
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.process import ProcessIdentity, is_alive

NAME = "group.json"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One start of the group. holder: the `yatt up` in whose terminal it runs; none when it was started with --detach.

    started_at: Unix time. ending: somebody wants it to end, so that its terminal does not start again what is killed for it.
    """

    holder: ProcessIdentity | None
    ports: Ports
    started_at: float
    ending: bool = False

    @property
    def is_abandoned(self) -> bool:
        """Whether its terminal went away without ending it."""
        return self.holder is not None and not is_alive(self.holder)

    @property
    def held_by(self) -> str:
        """Who holds it, in words."""
        return "detached" if self.holder is None else f"in the terminal of pid {self.holder.pid}"


def write_record(folder: Path, record: GroupRecord) -> None:
    """Publishes the record."""
    write_json(folder / NAME, asdict(record))


def read_record(folder: Path) -> GroupRecord | None:
    """The record of the last start; none where there was none. Raises `InfrastructureError` for a damaged file."""
    file = folder / NAME
    try:
        value = json.loads(file.read_text())
        holder = value["holder"]
        identity = None if holder is None else ProcessIdentity(**holder)
        return GroupRecord(identity, Ports(**value["ports"]), float(value["started_at"]), bool(value["ending"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{file}: is no record of a group ({error}); remove it, then `yatt down` ends what is left"
        ) from None
