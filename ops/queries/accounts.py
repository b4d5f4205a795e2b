"""A run's use of time and the cost of its crashes, cached for a few seconds.

Consumes the history of a run's newest attempts and of its failures; produces `Accounted`. Computing it takes tens of
milliseconds of CPU time, and several pages and Prometheus request it. A cached result is recomputed once it is
`FRESH_SECONDS` old or the audit chain has a new event.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from db.ledger import Ledger
from db.read.history import RunHistory
from flows.reports.accounting import Accounts, Crash, accounts_of, book, crashes_of
from flows.run.session_times import session_spans

ATTEMPTS = 2_000
"""Maximum number of attempts that the accounts are computed from: about 250 iterations."""
FAULTS = 500
FRESH_SECONDS = 5.0
RUNS = 32
"""Maximum number of runs whose accounts are cached."""


@dataclass(frozen=True, slots=True)
class Accounted:
    """A run's newest history, its accounts, and the crashes of the whole run (at most the newest `FAULTS`).

    event_seq: number of the audit chain's last event when the accounts were computed.
    made_at: when they were computed, in seconds on the monotonic clock.
    """

    history: RunHistory
    accounts: Accounts
    crashes: tuple[Crash, ...]
    event_seq: int
    made_at: float


class _Kept:
    """The cache of one ledger; one thread at a time computes, the others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, Accounted] = OrderedDict()

    def get(self, ledger: Ledger, run: str) -> Accounted:
        """Returns the accounts of a run. Raises `RunNotFound`."""
        head = ledger.events.head(run).seq
        with self._lock:
            found = self._runs.get(run)
            if found is None or found.event_seq < head or time.monotonic() - found.made_at >= FRESH_SECONDS:
                found = self._runs[run] = _make(ledger, run, head)
            self._runs.move_to_end(run)
            while len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        return found


def _make(ledger: Ledger, run: str, head: int) -> Accounted:
    history = ledger.overview.history(run, ATTEMPTS)
    made = accounts_of(history)
    crashes = made.crashes
    if history.since is not None:
        struck = ledger.overview.struck(run, ATTEMPTS, FAULTS)
        sessions = session_spans(struck)
        crashes = crashes_of(sessions, list(book(struck, sessions)))[-FAULTS:]
    return Accounted(history=history, accounts=made, crashes=crashes, event_seq=head, made_at=time.monotonic())


_kept: WeakKeyDictionary[Ledger, _Kept] = WeakKeyDictionary()


def accounts(ledger: Ledger, run: str) -> Accounted:
    """Returns the accounts of a run's newest attempts. Raises `RunNotFound`."""
    return _kept.setdefault(ledger, _Kept()).get(ledger, run)
