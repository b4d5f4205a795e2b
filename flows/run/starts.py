"""How long starts of this home have taken: one link of the audit chain for each session, written when its work begins.

Consumes the ledger; produces the starts that were like one that is about to be made. They are telemetry: no result depends on
them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from db.ledger import Ledger
from yatt_core.planning.start import StartParts

SESSION_READY = "session_ready"
"""The kind of these links."""
RUNS = 200
"""The newest runs whose starts are read."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a driver runs. The cores are those that its process may use."""

    host: str
    cores: int

    @classmethod
    def this(cls) -> Machine:
        """Returns the machine of this process."""
        return cls(socket.gethostname(), len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A start that is over.

    seconds: from the beginning of the driver's process until the session's work began.
    is_new: whether that process had created the run, as `yatt train` does, and waited for nothing that was away.
    parts: what was started; of actors, those that were created.
    """

    seconds: float
    is_new: bool
    machine: Machine
    parts: StartParts

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a link."""
        return {"seconds": self.seconds, "new": self.is_new, **asdict(self.machine), **self.parts.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SessionStart:
        """Reads the body of a link."""
        return cls(
            seconds=body["seconds"],
            is_new=body["new"],
            machine=Machine(body["host"], body["cores"]),
            parts=StartParts.from_json(body),
        )


def starts_like(ledger: Ledger, machine: Machine, parts: StartParts, most: int) -> list[float]:
    """Returns the seconds of the newest starts of new runs on a machine that were like one of these parts, newest first.

    most: how many.
    """
    starts = (SessionStart.from_json(link.body) for link in ledger.events.of_newest_runs(SESSION_READY, RUNS))
    found = [
        start.seconds for start in starts if start.is_new and start.machine == machine and start.parts.is_like(parts)
    ]
    return found[:most]
