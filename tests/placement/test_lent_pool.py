"""The simulator and the policies know instances on the trainer's devices: they join once it has learnt, or never."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placement.workloads import small
from yatt_core.placement.actions import JUDGE, KEEPS, LENDS, ROLLOUT, trainer_line
from yatt_core.placement.lending import LendingDecision, Levelled, lending_setting
from yatt_core.placement.occupancy import (
    GOING_OVER,
    TRAINING,
    RoleSpan,
    idle_fraction,
    role_times,
    spans_of,
    with_trainer,
)
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, Hold, InTurn, SplitPool
from yatt_core.placement.records import setting_from_json, setting_to_json
from yatt_core.placement.seen import IterationTelemetry, PlacementPolicy, RuntimePolicy, Setting, Usage
from yatt_core.placement.simulation.campaign import collect, draw_iterations, setting_of

WORKLOAD = small(devices=4)
((WAVE,), *_) = draw_iterations(WORKLOAD)


def lent(count: int, after_s: float | None, devices: int = 4) -> Setting:
    return replace(setting_of(small(devices=devices)), lent=count, lent_after_s=after_s)


def collected(setting: Setting, runtime_policy: RuntimePolicy, roles: str = "RRRJ") -> IterationTelemetry:
    return collect(setting=setting, roles=roles, runtime_policy=runtime_policy, waves=[WAVE], before=roles)


def work_of(telemetry: IterationTelemetry) -> dict[str, int]:
    """Returns the tokens that were decoded, by role."""
    return {role: sum(row.sequence_steps for row in telemetry.usage if row.role == role) for role in (ROLLOUT, JUDGE)}


def test_an_instance_that_is_never_lent_is_as_good_as_none() -> None:
    without = collected(lent(0, 0.0, devices=3), Hold(), roles="RRJ")
    kept = collected(lent(1, None), Hold())
    assert kept.collect_s == without.collect_s and all(row.instance > 0 for row in kept.usage)
    assert work_of(kept) == work_of(without)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 3.0))
def test_a_lent_instance_works_from_when_the_trainer_has_learnt(after_s: float) -> None:
    whole = collected(lent(0, 0.0), Hold())
    kept = collected(lent(1, None), Hold())
    found = collected(lent(1, after_s), Levelled(Hold()))
    assert work_of(found) == work_of(whole)
    busy = sum(row.decode_s + row.prefill_s for row in found.usage if row.instance == 0)
    assert busy <= max(0.0, found.collect_s - after_s) + 1e-9
    if after_s < kept.collect_s / 2:
        assert busy > 0.0 and found.collect_s < 1.02 * kept.collect_s, "what is moved is read again"
    assert collected(lent(1, 0.0), Hold()).collect_s == whole.collect_s


@pytest.mark.parametrize("after_s", [0.0, 0.7, 60.0, None])
@pytest.mark.parametrize("policy", [ColocatePool(), SplitPool(1), Dynamic()])
def test_every_policy_ends_an_iteration_whatever_the_trainer_does(
    policy: PlacementPolicy, after_s: float | None
) -> None:
    setting = lent(2, after_s)
    plan = policy.plan(setting, [], {})
    found = collected(setting, Levelled(plan.runtime_policy), plan.roles)
    again = policy.plan(setting, [found], plan.state)
    assert plan.roles[:2] == again.roles[:2] == "RR", "one that may come late or never does not judge from the start"
    assert ROLLOUT in again.roles[2:]
    assert work_of(found) == work_of(collected(lent(0, 0.0), InTurn(), "RRRR"))


def test_instances_that_join_after_the_last_rollout_judge_too() -> None:
    """All judge in turn; the trainer learns until rollouts are done and judging has begun."""
    late = collected(lent(1, 10.0), InTurn(), "RRRR")
    drained_s = late.collect_s - late.judging_s
    joins_s = drained_s + WORKLOAD.switch.role_s / 2
    found = collected(lent(1, joins_s), InTurn(), "RRRR")
    assert [row.role for row in found.usage if row.instance == 0] == [ROLLOUT, JUDGE]


def test_dynamic_counts_on_lent_instances_only_from_when_they_join() -> None:
    past = [collected(lent(2, after_s), Hold()) for after_s in (0.0, None)]
    expected = {}
    for after_s in (0.0, 0.5, 1.0, None):
        expected[after_s] = Dynamic().plan(lent(2, after_s), past[:1], {}).prediction_s or 0.0
    assert expected[0.0] < expected[0.5] < expected[1.0] < expected[None]


def test_a_setting_without_lent_instances_is_recorded_as_before() -> None:
    plain = json.loads(json.dumps(setting_to_json(setting_of(WORKLOAD))))
    assert not {"lent", "lent_after_s"} & plain.keys()
    assert setting_from_json(plain) == setting_of(WORKLOAD)
    for after_s in (0.0, 1.5, None):
        setting = lent(2, after_s)
        assert setting_from_json(json.loads(json.dumps(setting_to_json(setting)))) == setting


@pytest.mark.parametrize(("lends", "after_s"), [(True, 3.5), (False, None)])
def test_the_setting_follows_the_decision(lends: bool, after_s: float | None) -> None:
    setting = setting_of(WORKLOAD)
    found = lending_setting(setting, 2, LendingDecision(lends, None, "by hand"), 3.5)
    assert found == replace(setting, lent=2, lent_after_s=after_s)


def test_the_trainers_time_is_told_from_the_engines() -> None:
    lines = [
        {"t": 0.5, **trainer_line(0, True)},
        {"t": 0.5, **trainer_line(1, True)},
        {"t": 4.0, **trainer_line(0, False)},
    ]
    assert [line["do"] for line in lines] == [KEEPS, KEEPS, LENDS]
    spans = with_trainer(spans_of("RRJ", [], role_s=1.0, end_s=10.0), lines, 10.0)
    assert spans == [
        RoleSpan(0, ROLLOUT, 0.0, 0.5), RoleSpan(0, TRAINING, 0.5, 4.0), RoleSpan(0, ROLLOUT, 4.0, 10.0),
        RoleSpan(1, ROLLOUT, 0.0, 0.5), RoleSpan(1, TRAINING, 0.5, 10.0),
        RoleSpan(2, JUDGE, 0.0, 10.0),
    ]  # fmt: skip
    usage = [Usage(0, ROLLOUT, decode_s=7.0), Usage(2, JUDGE, decode_s=10.0)]
    times = role_times(spans, usage)
    assert [(time.role, time.device_s) for time in times] == [
        (ROLLOUT, 7.0), (JUDGE, 10.0), (GOING_OVER, 0.0), (TRAINING, 13.0),
    ]  # fmt: skip
    assert idle_fraction(times) == 0.0, "what the trainer has is no engine's idle time"
