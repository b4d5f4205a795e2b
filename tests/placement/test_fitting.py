"""Costs of switching: measured in the run, kept while nothing newer is measured, and part of what a policy plans with."""

from __future__ import annotations

from dataclasses import replace

from tests.placement.workloads import small
from yatt_core.placement.fitting import fitted
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.seen import IterationTelemetry, Setting, SwitchTime
from yatt_core.placement.simulation.campaign import run_campaign, setting_of
from yatt_core.placement.workload import SwitchCosts

FREE = SwitchCosts(role_s=0.0, repartition_s=0.0, train_s=0.0)


def iteration(*switches: SwitchTime) -> IterationTelemetry:
    return IterationTelemetry("RRJJ", (), (), 10.0, 1.0, switches)


def setting() -> Setting:
    return replace(setting_of(small(judgements=2)), switch=FREE)


def test_switching_costs_the_median_of_what_was_measured() -> None:
    within = [SwitchTime(False, seconds) for seconds in (1.0, 9.0, 2.0)]
    assert fitted(setting(), [iteration(*within[:2]), iteration(within[2])]).switch.role_s == 2.0
    assert fitted(setting(), [iteration(SwitchTime(True, 3.0), *within)]).switch == SwitchCosts(
        role_s=2.0, repartition_s=3.0, train_s=0.0
    )
    one_kind = fitted(setting(), [iteration(SwitchTime(True, 3.0))]).switch
    assert (one_kind.role_s, one_kind.repartition_s) == (3.0, 3.0)


def test_the_last_measurement_is_kept_while_no_role_changes() -> None:
    policy = Dynamic(fit=True)
    work = run_campaign(small(judgements=2), Dynamic()).past[0]
    first = policy.plan(setting(), [replace(work, switches=(SwitchTime(False, 2.5),))], {})
    assert first.state["switch"]["role_s"] == 2.5
    second = policy.plan(setting(), [replace(work, switches=())], first.state)
    assert second.state["switch"] == first.state["switch"]
    assert "switch" not in Dynamic().plan(setting(), [work], {}).state
