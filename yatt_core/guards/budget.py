"""The budget of a run: hours of wall time over its driver sessions, and device-hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec.sections.guards import BudgetGuard

BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used over all of its driver sessions."""

    wall_hours: float
    device_hours: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall_hours + other.wall_hours, self.device_hours + other.device_hours)


def judge_budget(budget: BudgetGuard, spent: Spent, iteration: int) -> Iterator[Alarm]:
    """Yields an alarm for each limit that is reached; the alarm keeps its name as long as the limit is unchanged."""
    for name, words in (("wall_hours", "hours of wall time"), ("device_hours", "device-hours")):
        limit, used = getattr(budget, name), getattr(spent, name)
        if limit is not None and used >= limit:
            text = f"the run has used {used:.4g} {words}; its budget is {limit:g}"
            evidence = {"bound": name, "observed": used, "threshold": limit}
            found = Finding(text, iteration, evidence)
            yield Alarm(BUDGET, f"{BUDGET}.{name}.{limit:g}", budget.action, found, lasting=True)
