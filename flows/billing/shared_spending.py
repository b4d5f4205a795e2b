"""What other runs were charged that count towards the same budgets; read again at most once a minute.

Consumes the ledger. The charges of a run that has no driver change only with its audit chain, so they are kept.
"""

from __future__ import annotations

import math

from db.ledger import Ledger
from flows.billing.held_time import total_charges
from flows.run.clock import Clock
from yatt_core.costs.charging import Amounts, ChargeKey

SECONDS = 60.0
RUNS = 10_000
"""Maximum number of runs that count; the newest ones."""


class SharedSpending:
    """The charges of all runs but one."""

    def __init__(self, ledger: Ledger, run: str, clock: Clock) -> None:
        self._ledger = ledger
        self._run = run
        self._clock = clock
        self._read: dict[int | None, tuple[float, dict[ChargeKey, Amounts]]] = {}
        self._kept: dict[tuple[str, int | None], tuple[int, dict[ChargeKey, Amounts]]] = {}

    def charges(self, since: int | None) -> dict[ChargeKey, Amounts]:
        """Returns the charges, without causes and phases; `since` as in `total_charges`."""
        read_at, charges = self._read.get(since, (-math.inf, {}))
        if (now := self._clock.monotonic()) - read_at >= SECONDS:
            driven = self._ledger.leases.holders()
            runs = [row.id for row in self._ledger.runs.list(RUNS) if row.id != self._run]
            charges = {}
            for run in runs:
                charges |= self._of(run, since, run in driven)
            self._read[since] = now, charges
        return charges

    def _of(self, run: str, since: int | None, driven: bool) -> dict[ChargeKey, Amounts]:
        head = self._ledger.events.head(run).seq
        seq, charges = self._kept.get((run, since), (-1, {}))
        if driven or seq != head:
            charges = total_charges(self._ledger, run, since)
            self._kept[run, since] = head, charges
        return charges
