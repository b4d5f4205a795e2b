"""A session's budgets: what the run's spec allows in hours and money, and the price file's budgets, which span several runs.

Consumes what the run has used and been charged; produces alarms. Limits are checked at each commit and before
anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from db.core.engine import Fence
from db.ledger import Ledger
from flows.billing.session_billing import SessionBilling
from flows.billing.shared_spending import SharedSpending
from flows.driver.spending import Spending
from flows.run.clock import Clock
from yatt_core.costs.budgets import Bound, Limit, judge_limit, limits_of, spent_in, unit_of
from yatt_core.costs.charging import Amounts
from yatt_core.costs.prices import SharedBudget, milliseconds
from yatt_core.guards.budget import judge_budget
from yatt_core.guards.findings import Alarm
from yatt_core.spec import RunSpec


class Budgets:
    """The budgets that apply to a run during a session."""

    def __init__(self, ledger: Ledger, fence: Fence, spec: RunSpec, clock: Clock, billing: SessionBilling) -> None:
        self._spec = spec
        self._run = fence.run
        self._clock = clock
        self._billing = billing
        hours = spec.guards.budget.limits_hours
        self._spending = Spending(ledger, fence, billing, clock) if hours else None
        self._others = SharedSpending(ledger, fence.run, clock)

    def alarms(self, iteration: int) -> Iterator[Alarm]:
        """Yields an alarm for each limit that is reached or nearly reached."""
        if self._spending is not None:
            yield from judge_budget(self._spec.guards.budget, self._run, self._spending.so_far(), iteration)
        self._billing.refresh()
        for limit, spent in (*self._own(), *self._shared()):
            if (alarm := judge_limit(limit, spent, iteration)) is not None:
                yield alarm

    def _own(self) -> Iterator[tuple[Limit, Amounts]]:
        """Yields the limits of the spec that need prices, with what counts towards them."""
        budget = self._spec.guards.budget
        if not budget.needs_prices:
            return
        currency = self._billing.currency
        spent = spent_in(self._billing.charges(), SharedBudget(scope="run", name=self._run, cost=Decimal(1)), currency)
        bounds: tuple[tuple[Bound, Decimal | None], ...] = (("cost", budget.cost), ("carbon_kg", budget.carbon_kg))
        for bound, limit in bounds:
            if limit is not None:
                remedy = f"raise it: yatt resume {self._run} --set guards.budget.{bound}=AMOUNT"
                unit = unit_of(bound, currency)
                warn_at = Decimal(str(budget.warn_at))
                yield (
                    Limit(
                        whose="the run",
                        name=bound,
                        bound=bound,
                        unit=unit,
                        limit=limit,
                        warn_at=warn_at,
                        action=budget.action,
                        remedy=remedy,
                    ),
                    spent,
                )

    def _shared(self) -> Iterator[tuple[Limit, Amounts]]:
        """Yields the limits of the price file that apply to the run, with what counts towards them."""
        billing = self._billing
        for budget in billing.shared_budgets():
            since = None if budget.valid_from is None else milliseconds(budget.valid_from)
            charges = billing.charges(since)
            if budget.scope != "run":
                charges |= self._others.charges(since)
            for limit in limits_of(budget, billing.currency, billing.file):
                yield limit, spent_in(charges, budget, billing.currency)
