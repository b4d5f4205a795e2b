"""Limits of money, device hours and carbon: when they warn, when they act, and what counts towards them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from yatt_core.costs.budgets import judge_limit, limits_of, spent_in
from yatt_core.costs.charging import MS_PER_HOUR, Amounts, ChargeKey
from yatt_core.costs.prices import SharedBudget

BUDGET = SharedBudget(scope="project", name="math", cost=Decimal(100), carbon_kg=Decimal(2), action="stop")
(COST, CARBON) = limits_of(BUDGET, "EUR", "prices.yaml")


@pytest.mark.parametrize(
    ("cost", "action"),
    [("79.999999", None), ("80", "alert"), ("99.999999", "alert"), ("100", "stop"), ("130", "stop")],
)
def test_a_limit_warns_at_a_fraction_and_acts_when_it_is_reached(cost: str, action: str | None) -> None:
    alarm = judge_limit(COST, Amounts(cost=Decimal(cost)), 7)
    assert (alarm.action if alarm else None) == action
    if alarm is not None:
        assert alarm.finding.evidence == {"bound": "cost", "observed": cost, "threshold": "100"}
        assert "the project math has used" in alarm.finding.text and "the budget is 100" in alarm.finding.text
        assert ("prices.yaml" in alarm.finding.text) == (action == "stop")


def test_a_raised_limit_is_another_alarm() -> None:
    names = {
        alarm.name
        for limit in (COST, replace(COST, limit=Decimal(101)), CARBON)
        if (alarm := judge_limit(limit, Amounts(cost=Decimal(200), carbon_g=Decimal(3000)), 0)) is not None
    }
    assert len(names) == 3


def test_money_in_another_currency_and_other_projects_do_not_count() -> None:
    amounts = Amounts(device_ms=MS_PER_HOUR, cost=Decimal(10), carbon_g=Decimal(500))
    place = ChargeKey("a-1", "math", "ada", "H100", "EUR", "", "")
    charges = {
        place: amounts,
        place._replace(currency="USD"): amounts,
        place._replace(project="code"): amounts,
    }
    spent = spent_in(charges, BUDGET, "EUR")
    assert (spent.cost, spent.device_hours, spent.carbon_g) == (Decimal(10), Decimal(2), Decimal(1000))


def test_budgets_of_successive_periods_have_alarms_of_their_own() -> None:
    later = BUDGET.model_copy(update={"valid_from": datetime(2027, 1, 1, tzinfo=UTC)})
    assert {limit.name for limit in limits_of(later, "EUR", "")}.isdisjoint({COST.name, CARBON.name})
