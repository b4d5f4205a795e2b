"""The process that holds the group, and its ports: `group.json` in the group's folder, published by rename.

Written by `yatt up`; read by `yatt up`, `yatt down` and `yatt status` in any terminal.
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
    """One start of the group.

    holder: the `yatt up` in whose terminal it runs; None if it was started with --detach.
    started_at: Unix time.
    ending: True once it is being stopped, so that its terminal does not restart members that are killed on
        purpose.
    """

    holder: ProcessIdentity | None
    ports: Ports
    started_at: float
    ending: bool = False

    @property
    def is_abandoned(self) -> bool:
        """True if its terminal closed without stopping it."""
        return self.holder is not None and not is_alive(self.holder)

    @property
    def held_by(self) -> str:
        """A description of the holder."""
        return "detached" if self.holder is None else f"in the terminal of pid {self.holder.pid}"


def write_record(folder: Path, record: GroupRecord) -> None:
    """Publishes the record."""
    write_json(folder / NAME, asdict(record))


def read_record(folder: Path) -> GroupRecord | None:
    """Returns the record of the last start; None if there was none. Raises `InfrastructureError` for a damaged file."""
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
            f"{file}: not a valid group record ({error}); remove it, then stop what is left with `yatt down`"
        ) from None
