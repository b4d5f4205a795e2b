"""`dynamic` plans by what it has seen alone, keeps its start unless a change pays, and its log says all that it did."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.placement.workloads import small
from yatt_core.errors import ConfigurationError
from yatt_core.placement.campaign import Campaign, run_campaign, setting_of
from yatt_core.placement.curve import Curve, Knobs
from yatt_core.placement.dynamic import Dynamic, chosen, roles_of, thinned, trend
from yatt_core.placement.fitting import fitted
from yatt_core.placement.fixed import ColocatePool, SplitPool
from yatt_core.placement.logged import Logged
from yatt_core.placement.seen import Plan
from yatt_core.placement.workload import Workload

STEADY = {"median": 200.0, "sigma": 0.6, "min": 16, "max": 4096, "rho": 0.4}
WORKLOADS = {
    "plain": small(),
    "waves": small(dynamic_sampling=True, validity=0.5),
    "tools": small(tools={"max_turns": 3, "mean_wait_s": 0.2, "output_tokens": 20}),
}


def logged(workload: Workload) -> tuple[Campaign, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    return run_campaign(workload, Dynamic(), log=lines.append), lines


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_future_changes_nothing_before_it(name: str) -> None:
    """From iteration 2 on responses are ten times as long."""
    base = WORKLOADS[name].model_copy(update={"iterations": 4})
    lengths = base.samples.response.model_copy(update={"median": ((1, 200.0), (2, 2000.0))})
    other = base.model_copy(update={"samples": base.samples.model_copy(update={"response": lengths})})
    ours, theirs = (
        [[line for line in logged(workload)[1] if line["iteration"] == iteration] for iteration in range(4)]
        for workload in (base, other)
    )
    assert ours[:2] == theirs[:2] and ours[2:] != theirs[2:]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_log_carried_out_again_takes_the_same_time(name: str) -> None:
    campaign, lines = logged(WORKLOADS[name])
    again = run_campaign(WORKLOADS[name], Logged(lines, "small", "log"))
    assert again.collect_s == campaign.collect_s and len(lines) > 4
    with pytest.raises(ConfigurationError, match="log: no roles for iteration 0"):
        run_campaign(WORKLOADS[name], Logged(lines, "another", "log"))


def test_it_beats_what_never_looks() -> None:
    workload = small(devices=8).model_copy(update={"iterations": 4})
    dynamic = sum(run_campaign(workload, Dynamic()).collect_s)
    splits = [sum(run_campaign(workload, SplitPool(judges)).collect_s) for judges in range(1, 8)]
    assert dynamic < 1.05 * min(splits) and dynamic < sum(run_campaign(workload, ColocatePool()).collect_s)


def test_constants_come_back_from_telemetry() -> None:
    workload = small(devices=4)
    setting = setting_of(workload)
    past = run_campaign(workload, SplitPool(1)).past
    found = fitted(dataclasses.replace(setting, rollout=setting.rollout.model_copy(update={"base_s": 1.0})), past)
    for role in ("rollout", "judge"):
        true, fit = getattr(setting, role), getattr(found, role)
        assert fit.per_prompt_token_s == pytest.approx(true.per_prompt_token_s)
        assert fit.base_s == pytest.approx(true.base_s, rel=0.02)
        assert fit.max_concurrent == true.max_concurrent
    assert fitted(setting, []).rollout.base_s != setting.rollout.base_s, "nothing is known without telemetry"


def test_a_start_changes_only_for_a_gain() -> None:
    held, other = Knobs(1, 0.5), Knobs(2, 0.5)
    assert chosen({held: 10.2, other: 10.0}, held) == held
    assert chosen({held: 10.4, other: 10.0}, held) == other
    assert chosen({held: 10.2, other: 10.0}, None) == other


def test_slow_instances_judge_first() -> None:
    assert roles_of((1.0, 0.5, 1.0, 0.5), 3) == "RJJJ"
    assert roles_of((1.0, 1.0, 1.0), 1) == "RRJ"


def test_a_drift_is_carried_on_and_noise_is_not() -> None:
    growing = small(response={**STEADY, "sigma": 0.2, "median": ((0, 200.0), (3, 800.0))}).model_copy(
        update={"iterations": 4}
    )
    past = run_campaign(growing, SplitPool(1)).past
    assert trend(past)[0] == pytest.approx(1.25, rel=0.1), "200, 400, 600, 800: 1000 is next"
    steady = small().model_copy(update={"iterations": 4})
    assert trend(run_campaign(steady, SplitPool(1)).past) == [1.0] * 4


def test_every_nth_group_stands_for_all() -> None:
    wave = run_campaign(small(), SplitPool(1)).past[0].waves[0]
    part = thinned(wave, 4)
    assert {sample.group for sample in part.samples} == {0, 4, 8, 12} and len(part.samples) == 16 == len(
        wave.samples
    ) // 4
    assert thinned(wave, 1) is wave


def test_a_curve_never_leaves_rollouts_without_an_instance() -> None:
    setting = setting_of(small())
    campaign = run_campaign(small(), _Steep())
    assert all(seconds > 0 for seconds in campaign.collect_s) and len(setting.speeds) == 4


class _Steep:
    """Hands over as fast as a curve can."""

    def plan(self, setting, past, state):
        return Plan("RRRR", Curve(Knobs(0, 2.0), "RRRR", setting), None, "steep")
