"""Where a run's time went, made once for all who ask within some seconds.

Consumes the history of a run's newest attempts; produces `Accounted`. Making it takes tens of milliseconds of a processor, and
several pages and Prometheus ask for it. It is made anew once it is `FRESH_SECONDS` old or the audit chain has another link.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from db.history import RunHistory
from db.ledger import Ledger
from flows.accounting import Accounts, accounts_of

ATTEMPTS = 2_000
"""Attempts that the accounts are made from at most: some 250 iterations."""
FRESH_SECONDS = 5.0
RUNS = 32
"""Runs whose accounts are kept."""


@dataclass(frozen=True, slots=True)
class Accounted:
    """A run's newest history, its accounts, and what they were made from. made_at: by the monotonic clock, in seconds."""

    history: RunHistory
    accounts: Accounts
    event_seq: int
    made_at: float


class _Kept:
    """What was made for one ledger; one thread at a time makes it, the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, Accounted] = OrderedDict()

    def get(self, ledger: Ledger, run: str) -> Accounted:
        """The accounts of a run. Raises `RunNotFound`."""
        head = ledger.events.head(run).seq
        with self._lock:
            found = self._runs.get(run)
            if found is None or found.event_seq != head or time.monotonic() - found.made_at >= FRESH_SECONDS:
                history = ledger.overview.history(run, ATTEMPTS)
                found = self._runs[run] = Accounted(history, accounts_of(history), head, time.monotonic())
            self._runs.move_to_end(run)
            while len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        return found


_kept: WeakKeyDictionary[Ledger, _Kept] = WeakKeyDictionary()


def accounts(ledger: Ledger, run: str) -> Accounted:
    """Where the time of a run went lately. Raises `RunNotFound`."""
    return _kept.setdefault(ledger, _Kept()).get(ledger, run)
