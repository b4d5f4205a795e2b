"""Keeps a segment's lease alive from a thread of its own, and tells the main loop the moment it may no longer write.

A driver that was stopped and continued may still believe in its lease: before a side effect the main loop asks `check`, which
trusts this process's monotonic clock, not the database's answer of long ago.
"""

from __future__ import annotations

import logging
import threading
import time

from db.engine import Fence
from db.errors import Fenced, LedgerUnavailable
from db.ledger import Ledger
from yatt_core.errors import FencedError

log = logging.getLogger("yatt_core.flow")
RENEWALS_PER_LIFE = 5


class LeaseKeeper:
    """Renews a lease five times in its life, through a connection of its own."""

    def __init__(self, address: str, fence: Fence, life_seconds: float) -> None:
        self._address, self._fence, self._life = address, fence, life_seconds
        self._deadline = time.monotonic() + life_seconds
        self._lost = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="lease", daemon=True)

    def start(self) -> None:
        """Begins to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Stops renewing; the lease itself is given back by who holds the fence."""
        self._ended.set()
        self._thread.join(self._life)

    def check(self) -> None:
        """Raises `FencedError` once the lease was lost, or has run out unrenewed by this process's own clock."""
        if self._lost:
            raise FencedError(self._lost)
        if time.monotonic() > self._deadline:
            raise FencedError(
                f"the lease of epoch {self._fence.epoch} ran out {time.monotonic() - self._deadline:.1f} s ago"
            )

    def _renew_for_ever(self) -> None:
        ledger = Ledger.open(self._address, migrate=False)
        try:
            while not self._ended.wait(self._life / RENEWALS_PER_LIFE):
                asked = time.monotonic()
                try:
                    ledger.leases.renew(self._fence, self._life)
                except Fenced as error:
                    self._lost = str(error)
                    return
                except LedgerUnavailable as error:
                    log.warning("the lease could not be renewed: %s", error)
                else:
                    self._deadline = asked + self._life
        finally:
            ledger.close()
