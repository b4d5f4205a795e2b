"""The budget of a run: hours of wall time over its driver sessions, and device-hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec.sections.guards import BudgetGuard

BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class UsedHours:
    """What a run has used over all of its driver sessions."""

    wall_hours: float
    device_hours: float

    def __add__(self, other: UsedHours) -> UsedHours:
        return UsedHours(self.wall_hours + other.wall_hours, self.device_hours + other.device_hours)


def judge_budget(budget: BudgetGuard, run: str, spent: UsedHours, iteration: int) -> Iterator[Alarm]:
    """Yields an alarm for each limit of hours that is reached, and an alert for each of which `warn_at` is reached.

    An alarm keeps its name as long as the limit is unchanged.
    """
    for name, words in (("wall_hours", "hours of wall time"), ("device_hours", "device-hours")):
        limit = getattr(budget, name)
        used = getattr(spent, name)
        if limit is None or used < budget.warn_at * limit:
            continue
        reached = used >= limit
        text = f"the run has used {used:.4g} {words}; its budget is {limit:g}"
        if reached and budget.action != "alert":
            text += f"; to continue, raise it: yatt resume {run} --set guards.budget.{name}=HOURS"
        found = Finding(text, iteration, {"bound": name, "observed": used, "threshold": limit})
        action, suffix = (budget.action, "") if reached else ("alert", ".warning")
        yield Alarm(BUDGET, f"{BUDGET}.{name}.{limit:g}{suffix}", action, found, lasting=True)
