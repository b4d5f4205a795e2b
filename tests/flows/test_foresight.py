"""The next placement is planned while the trainer learns; a plan from other inputs is never used."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from flows.foresight import Foresight
from flows.placement_inputs import REMEMBERED, Inputs
from tests.placement.workloads import small
from yatt_core.placement.campaign import run_campaign, setting_of
from yatt_core.placement.dynamic import Dynamic
from yatt_core.placement.seen import Plan


class Counting(Dynamic):
    """Notes the threads that it plans in."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def plan(self, setting, past, state) -> Plan:
        self.threads.append(threading.current_thread().name)
        return super().plan(setting, past, state)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    workload = small()
    campaign = run_campaign(workload, Dynamic())
    first = Inputs(setting_of(workload), (), (), {})
    return first.after(campaign.past[0], {"iteration": 1}, campaign.plans[0].state)


def test_a_plan_made_ahead_is_the_plan(inputs: Inputs) -> None:
    policy = Counting()
    foresight = Foresight(policy)
    foresight.begin(inputs)
    plan, now = foresight.plan(replace(inputs)), inputs.plan(Dynamic())
    assert (plan.roles, plan.state, plan.reason) == (now.roles, now.state, now.reason)
    assert [name.startswith("placement") for name in policy.threads] == [True], "in a thread of its own, once"


def test_where_it_turns_out_otherwise_it_is_planned_anew(inputs: Inputs) -> None:
    policy = Counting()
    foresight = Foresight(policy)
    foresight.begin(inputs)
    other = replace(inputs, past=(), names=())
    assert foresight.plan(other).roles == other.plan(Dynamic()).roles
    assert sorted(name.startswith("placement") for name in policy.threads) == [False, True]


def test_no_more_is_remembered_than_is_used(inputs: Inputs) -> None:
    later = inputs
    for iteration in range(2, 9):
        later = later.after(inputs.past[0], {"iteration": iteration}, {})
    assert len(later.past) == len(later.names) == REMEMBERED
    assert later.names[-1] == {"iteration": 8}
