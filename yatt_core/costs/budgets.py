"""Budgets of money, device hours and carbon: a warning at a fraction of a limit, an action once it is reached. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from yatt_core.costs.charging import Amounts, ChargeKey
from yatt_core.costs.prices import SharedBudget
from yatt_core.guards.budget import BUDGET
from yatt_core.guards.findings import Alarm, Finding

GRAMS = 1000
Bound = Literal["cost", "device_hours", "carbon_kg"]
BOUNDS: tuple[Bound, ...] = ("cost", "device_hours", "carbon_kg")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit.

    whose: what it is for, in words, such as `the project math`.
    name: distinguishes it from the limits of other scopes.
    unit: in words.
    remedy: how to raise it.
    """

    whose: str
    name: str
    bound: Bound
    unit: str
    limit: Decimal
    warn_at: Decimal
    action: str
    remedy: str


def limits_of(budget: SharedBudget, currency: str, file: str) -> Iterator[Limit]:
    """Yields the limits of a budget of the price file.

    file: the price file, for the remedy.
    """
    whose = budget.name if budget.scope == "run" else f"the {budget.scope} {budget.name}"
    for bound in BOUNDS:
        limit = getattr(budget, bound)
        if limit is not None:
            # Budgets of successive periods raise alarms of their own.
            period = "" if budget.valid_from is None else f".{budget.valid_from.isoformat()}"
            name = f"{budget.scope}.{budget.name}.{bound}{period}"
            remedy = f"raise {bound} of this budget in {file}, then resume the run"
            yield Limit(
                whose=whose,
                name=name,
                bound=bound,
                unit=unit_of(bound, currency),
                limit=limit,
                warn_at=budget.warn_at,
                action=budget.action,
                remedy=remedy,
            )


def unit_of(bound: Bound, currency: str) -> str:
    """Returns the unit of a limit in words."""
    return {"cost": currency, "device_hours": "device-hours", "carbon_kg": "kg of CO2"}[bound]


def used(bound: Bound, amounts: Amounts) -> Decimal:
    """Returns how much of a limit's unit was used."""
    if bound == "cost":
        return amounts.cost
    return amounts.device_hours if bound == "device_hours" else amounts.carbon_g / GRAMS


def judge_limit(limit: Limit, spent: Amounts, iteration: int) -> Alarm | None:
    """Returns the alarm of a limit: its action once it is reached, an alert from the fraction `warn_at` on, else None.

    The alarm keeps its name as long as the limit is unchanged, so that it is raised once.
    """
    amount = used(limit.bound, spent)
    reached = amount >= limit.limit
    if not reached and amount < limit.limit * limit.warn_at:
        return None
    text = f"{limit.whose} has used {shown(amount)} {limit.unit}; the budget is {shown(limit.limit)}"
    if reached and limit.action != "alert":
        text += f"; to continue, {limit.remedy}"
    evidence = {"bound": limit.bound, "observed": format(amount, "f"), "threshold": format(limit.limit, "f")}
    name = f"{BUDGET}.{limit.name}.{limit.limit.normalize():f}" + ("" if reached else ".warning")
    return Alarm(BUDGET, name, limit.action if reached else "alert", Finding(text, iteration, evidence), lasting=True)


def spent_in(charges: Mapping[ChargeKey, Amounts], budget: SharedBudget, currency: str) -> Amounts:
    """Returns what counts towards a budget: all device hours and carbon, and the money in the file's currency."""
    total = Amounts()
    for place, amounts in charges.items():
        if getattr(place, budget.scope) == budget.name:
            total += (
                amounts
                if place.currency == currency
                else Amounts(
                    device_ms=amounts.device_ms,
                    unpriced_ms=amounts.unpriced_ms,
                    unmetered_ms=amounts.unmetered_ms,
                    cost=Decimal(0),
                    energy_kwh=amounts.energy_kwh,
                    carbon_g=amounts.carbon_g,
                )
            )
    return total


def shown(amount: Decimal) -> str:
    """Returns an amount with at most four decimals, without trailing zeros."""
    text = format(amount.quantize(Decimal("0.0001")), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
