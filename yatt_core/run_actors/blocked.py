"""Ends controllers that Ray keeps occupied for a driver that is suspended.

Consumes which controllers have a pending call, and what they are doing. A streaming call ends, for Ray, once its caller has been
told of every result; a driver that is stopped, or whose machine is paused, is told of nothing, and its connection stays. The
controller has long finished, but serves no other call, until its next driver ends it. What it has sealed is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from yatt_core.run_actors.calls import ActorCalls

log = logging.getLogger(__name__)
FIRST_LOOK_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""Before the first look, and between two."""
REASON = "it does nothing and answers nothing: an earlier driver, which is suspended, keeps it occupied"


class BlockedControllers:
    """The controllers that an earlier driver made, and whether they have served this one."""

    def __init__(self, calls: ActorCalls) -> None:
        self._calls = calls
        self._heard: set[str] = set()
        self._idle: set[str] = set()

    def heard(self, names: Collection[str]) -> None:
        """Notes that controllers have served this driver, or were made by it."""
        self._heard.update(names)

    def unheard(self, names: Collection[str]) -> list[str]:
        """Returns those that have not served this driver yet, in the order given."""
        return [name for name in names if name not in self._heard]

    def look(self, pending: Collection[str]) -> bool:
        """Ends those that are idle at two looks in a row although a call is pending; returns True if others are idle.

        pending: controllers with a pending call. Only those that have not served this driver yet are looked at.
        """
        unheard = self.unheard(pending)
        idle = self._calls.idle(unheard) if unheard else set()
        for name in sorted(idle & self._idle):
            log.warning("%s: %s", name, REASON)
            self._calls.registry.end_stuck(name, REASON)
        self._idle = idle - self._idle
        return bool(self._idle)
