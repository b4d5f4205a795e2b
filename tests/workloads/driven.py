"""Drives runs of workloads in this process, in place of the processes that `yatt sweep` and `yatt pipeline` start."""

from __future__ import annotations

from dataclasses import dataclass, field

from flows.members.driving import Goals
from flows.run.home import Home
from tests.workloads.in_process import OwnRun


@dataclass
class Drive:
    """Drives one run at a time, and asks for the goals after each.

    killed_at: a place at which the driver of one run is killed once, with its ranks; empty for none.
    driven: runs with the iteration to which each was driven.
    """

    home: Home
    killed_at: str = ""
    driven: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, goals: Goals) -> None:
        while left := goals():
            run = min(left)
            place = self.killed_at
            own = OwnRun.opened(self.home, run)
            if own.drive(place, until=left[run]) is None:
                self.killed_at = ""
                continue
            self.driven.append((run, left[run]))
