"""Spans from an iteration's log: they account for every instance's time, and all its work is within a role."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.placement.recorded_run import Watched
from tests.placement.workloads import small
from yatt_core.placement.actions import JUDGE, ROLLOUT, HandOver, Intake, Switch, action_line, serves_line
from yatt_core.placement.occupancy import (
    GOING_OVER,
    Change,
    RoleSpan,
    busy_shares,
    changes_of,
    idle_fraction,
    role_times,
    spans_of,
)
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.seen import PlacementPolicy, Usage
from yatt_core.placement.simulation.campaign import collect, draw_iterations, setting_of


def at(t: float, line: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, **line}


def test_each_kind_of_role_change_has_its_spans() -> None:
    lines = [
        at(1.0, serves_line(3, JUDGE)),
        at(1.5, action_line(Intake(3, 4))),
        at(2.0, action_line(Switch(0, JUDGE))),
        at(3.0, action_line(HandOver(1, JUDGE, migrate=False))),
        at(4.0, serves_line(0, JUDGE)),
        at(8.0, serves_line(1, JUDGE)),
        at(9.0, action_line(Switch(2, JUDGE))),
    ]
    changes = changes_of("RRRJ", lines)
    assert changes == [
        Change(3, GOING_OVER, JUDGE, "start", 0.0, 1.0),
        Change(0, ROLLOUT, JUDGE, "empty", 2.0, 4.0),
        Change(1, ROLLOUT, JUDGE, "drain", 3.0, 8.0),
        Change(2, ROLLOUT, JUDGE, "empty", 9.0, None),
    ]
    assert spans_of("RRRJ", changes, role_s=2.0, end_s=10.0) == [
        RoleSpan(0, ROLLOUT, 0.0, 2.0), RoleSpan(0, GOING_OVER, 2.0, 4.0), RoleSpan(0, JUDGE, 4.0, 10.0),
        RoleSpan(1, ROLLOUT, 0.0, 6.0), RoleSpan(1, GOING_OVER, 6.0, 8.0), RoleSpan(1, JUDGE, 8.0, 10.0),
        RoleSpan(2, ROLLOUT, 0.0, 9.0), RoleSpan(2, GOING_OVER, 9.0, 10.0),
        RoleSpan(3, GOING_OVER, 0.0, 1.0), RoleSpan(3, JUDGE, 1.0, 10.0),
    ]  # fmt: skip


def test_an_unfinished_change_ends_with_the_next_one() -> None:
    lines = [
        at(1.0, action_line(Switch(0, JUDGE))),
        at(5.0, action_line(Switch(0, JUDGE))),
        at(6.0, serves_line(0, JUDGE)),
    ]
    spans = spans_of("R", changes_of("R", lines), role_s=1.0, end_s=8.0)
    assert [(span.role, span.start_s, span.end_s) for span in spans] == [
        (ROLLOUT, 0.0, 1.0), (GOING_OVER, 1.0, 5.0), (GOING_OVER, 5.0, 6.0), (JUDGE, 6.0, 8.0),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [ColocatePool(), SplitPool(2), Dynamic()])
def test_spans_tile_the_time_and_contain_all_work(policy: PlacementPolicy) -> None:
    workload = small(devices=6)
    setting = setting_of(workload)
    before = None
    past = []
    state = {}
    for waves in draw_iterations(workload):
        plan = policy.plan(setting, past, state)
        watched = Watched(plan.runtime_policy)
        telemetry = collect(setting, plan.roles, watched, waves, before, watched.log)
        spans = spans_of(plan.roles, changes_of(plan.roles, watched.lines), setting.switch.role_s, telemetry.collect_s)
        for index in range(len(plan.roles)):
            own = [span for span in spans if span.instance == index]
            edges = [(span.start_s, span.end_s) for span in own]
            assert edges[0][0] == 0.0 and edges[-1][1] == telemetry.collect_s
            assert all(end == start for (_, end), (start, _) in itertools.pairwise(edges))
            for role in (ROLLOUT, JUDGE):
                rows = [row for row in telemetry.usage if (row.instance, row.role) == (index, role)]
                busy = sum(row.decode_s + row.prefill_s for row in rows)
                assert busy <= sum(span.seconds for span in own if span.role == role) + 0.002, "the log is rounded"
        times = role_times(spans, telemetry.usage)
        assert sum(time.device_s for time in times) == pytest.approx(6 * telemetry.collect_s)
        assert 0.0 < idle_fraction(times) < 1.0
        past = [*past, telemetry]
        state = plan.state
        before = plan.roles


def test_switching_and_waiting_are_idle() -> None:
    spans = [RoleSpan(0, ROLLOUT, 0.0, 4.0), RoleSpan(0, GOING_OVER, 4.0, 6.0), RoleSpan(0, JUDGE, 6.0, 10.0)]
    usage = [Usage(0, ROLLOUT, sequence_steps=70, decode_s=3.0), Usage(0, JUDGE, prefill_s=1.0, decode_s=1.0)]
    rollout, judge, going = role_times(spans, usage)
    assert (rollout.idle_fraction, judge.idle_fraction, going.busy_s, rollout.tokens) == (0.25, 0.5, 0.0, 70)
    assert idle_fraction([rollout, judge, going]) == 0.5
    assert busy_shares(spans, usage) == {(0, ROLLOUT): 0.75, (0, GOING_OVER): 0.0, (0, JUDGE): 0.5}
    assert idle_fraction([]) == 0.0
