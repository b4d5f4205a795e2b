"""The next placement is planned while the trainer learns; a plan from other inputs is never used."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace

import pytest

from flows.placement.inputs import REMEMBERED, DecisionInputs
from flows.placement.prefetch import PlacementPrefetch
from tests.placement.workloads import small
from yatt_core.errors import ConfigurationError, StuckError
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.seen import Plan
from yatt_core.placement.simulation.campaign import run_campaign, setting_of

SECONDS = 60.0


class Counting(Dynamic):
    """Records the threads in which it plans."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def plan(self, setting, past, state) -> Plan:
        self.threads.append(threading.current_thread().name)
        return super().plan(setting, past, state)


@pytest.fixture(scope="module")
def inputs() -> DecisionInputs:
    workload = small()
    campaign = run_campaign(workload, Dynamic())
    first = DecisionInputs(setting_of(workload), (), (), {})
    return first.after(campaign.past[0], {"iteration": 1}, campaign.plans[0].state)


def test_a_prefetched_plan_equals_the_plan(inputs: DecisionInputs) -> None:
    policy = Counting()
    prefetch = PlacementPrefetch(policy)
    prefetch.begin(1, inputs)
    plan = prefetch.plan(1, replace(inputs), SECONDS)
    now = inputs.plan(Dynamic())
    assert (plan.roles, plan.state, plan.reason) == (now.roles, now.state, now.reason)
    assert policy.threads == ["placement"], "planned once, in its own thread"


def test_changed_inputs_are_planned_again(inputs: DecisionInputs) -> None:
    policy = Counting()
    prefetch = PlacementPrefetch(policy)
    prefetch.begin(1, inputs)
    other = replace(inputs, past=(), names=())
    assert prefetch.plan(1, other, SECONDS).roles == other.plan(Dynamic()).roles
    assert set(policy.threads) == {"placement"}, "also in a thread, because it may never return"


def test_a_policy_that_never_returns_is_not_waited_for(inputs: DecisionInputs) -> None:
    freed = threading.Event()
    threads = queue.SimpleQueue[threading.Thread]()

    class Endless(Dynamic):
        def plan(self, setting, past, state) -> Plan:
            threads.put(threading.current_thread())
            freed.wait(60)
            return super().plan(setting, past, state)

    prefetch = PlacementPrefetch(Endless())
    prefetch.begin(1, inputs)
    with pytest.raises(StuckError, match=r"^placement\.mode: .* 0\.01 s"):
        prefetch.plan(1, inputs, 0.01)
    thread = threads.get()
    assert thread.daemon, "it must not keep the process alive"
    freed.set()
    thread.join()


def test_a_policy_that_exits_has_failed(inputs: DecisionInputs) -> None:
    class Leaving(Dynamic):
        def plan(self, setting, past, state) -> Plan:
            raise SystemExit(0)

    with pytest.raises(ConfigurationError, match=r"^placement\.mode: .*SystemExit: 0"):
        PlacementPrefetch(Leaving()).plan(1, inputs, SECONDS)


def test_memory_is_limited_to_what_is_used(inputs: DecisionInputs) -> None:
    later = inputs
    for iteration in range(2, 9):
        later = later.after(inputs.past[0], {"iteration": iteration}, {})
    assert len(later.past) == len(later.names) == REMEMBERED
    assert later.names[-1] == {"iteration": 8}


def test_with_a_lag_a_plan_knows_what_was_noted_before_it_began(inputs: DecisionInputs) -> None:
    prefetch = PlacementPrefetch(Dynamic())
    (telemetry,) = inputs.past
    prefetch.note(telemetry, {"iteration": 2})
    prefetch.begin(4, prefetch.behind(inputs, {"knobs": 3}))
    expected = prefetch.expected(4)
    assert expected is not None and expected.state == {"knobs": 3}
    assert [name["iteration"] for name in expected.names] == [1, 2] and len(expected.past) == 2
    assert prefetch.behind(inputs, {}).names == inputs.names, "it is known to the plans after it through their inputs"
    prefetch.note(telemetry, {"iteration": 3})
    prefetch.forget()
    assert prefetch.expected(4) is None
    assert prefetch.behind(inputs, {}).names == inputs.names


def test_what_a_recorded_decision_is_planned_from_does_not_count_as_what_is_known(inputs: DecisionInputs) -> None:
    policy = Counting()
    prefetch = PlacementPrefetch(policy)
    recorded = replace(inputs, past=(), names=())
    prefetch.begin(2, inputs, recorded)
    assert prefetch.expected(2) == inputs, "the plans after it go on from there"
    prefetch.plan(2, recorded, SECONDS)
    assert len(policy.threads) == 1, "the plan that was begun is taken"
