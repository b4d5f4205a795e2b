"""`dynamic` plans from past telemetry only, keeps its start unless a change pays off, and logs all its actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.placement_logged import Logged
from tests.placement.workloads import small
from yatt_core.errors import ConfigurationError
from yatt_core.placement.policies import search
from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.dynamic import HYSTERESIS, Dynamic, chosen
from yatt_core.placement.policies.expected import ASSUMED_GROUP, LOOKS_BACK
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.policies.search import CandidateResult, Search, roles_of, steps_away
from yatt_core.placement.seen import Plan
from yatt_core.placement.simulation.campaign import Campaign, run_campaign, setting_of
from yatt_core.placement.workload import Cluster, Scenario

UNEVEN = Cluster.model_validate(
    {"devices_per_instance": 2, "groups": [{"devices": 4, "speed": 1.0}, {"devices": 4, "speed": 0.5}]}
)
WORKLOADS = {
    "plain": small(),
    "waves": small(dynamic_sampling=True, validity=0.5),
    "tools": small(tools={"max_turns": 3, "mean_wait_s": 0.2, "output_tokens": 20}),
    "uneven": small().model_copy(update={"cluster": UNEVEN}),
    "judgements": small(judgements=3),
}


def logged(workload: Scenario) -> tuple[Campaign, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    return run_campaign(workload, Dynamic(), log=lines.append), lines


@pytest.mark.parametrize("name", ["plain", "waves", "tools"])
def test_later_iterations_do_not_change_earlier_plans(name: str) -> None:
    """From iteration 2 on, responses are ten times as long."""
    base = WORKLOADS[name].model_copy(update={"iterations": 3})
    lengths = base.samples.response.model_copy(update={"median": ((1, 200.0), (2, 2000.0))})
    other = base.model_copy(update={"samples": base.samples.model_copy(update={"response": lengths})})
    ours, our_lines = logged(base)
    theirs, their_lines = logged(other)
    before = [[line for line in lines if line["iteration"] < 2] for lines in (our_lines, their_lines)]
    assert before[0] == before[1]
    assert ours.plans[2].roles == theirs.plans[2].roles, "the changed iteration is planned without knowing the change"
    assert ours.collect_s[:2] == theirs.collect_s[:2] and 2 * ours.collect_s[2] < theirs.collect_s[2]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_replayed_log_takes_the_same_time(name: str) -> None:
    campaign, lines = logged(WORKLOADS[name])
    again = run_campaign(WORKLOADS[name], Logged(lines, "small", "log"))
    assert again.collect_s == campaign.collect_s and len(lines) > 4
    with pytest.raises(ConfigurationError, match="log: no roles for iteration 0"):
        run_campaign(WORKLOADS[name], Logged(lines, "another", "log"))


def test_a_plan_depends_only_on_its_state_and_the_last_iterations() -> None:
    workload = small().model_copy(update={"iterations": LOOKS_BACK + 2})
    campaign = run_campaign(workload, SplitPool(1))
    setting = setting_of(workload)
    state = Dynamic().plan(setting, campaign.past[:1], {}).state
    plans = [Dynamic().plan(setting, campaign.past[start:], state) for start in (0, 1, 2)]
    assert len({(plan.roles, plan.reason, plan.prediction_s, str(plan.state)) for plan in plans}) == 1
    assert f"of {len(plans[0].roles)} instances judge" in plans[0].reason


def test_it_beats_static_placements() -> None:
    workload = small(devices=8).model_copy(update={"iterations": 4})
    dynamic = sum(run_campaign(workload, Dynamic()).collect_s)
    splits = [sum(run_campaign(workload, SplitPool(judges)).collect_s) for judges in range(1, 8)]
    assert dynamic < 1.05 * min(splits) and dynamic < sum(run_campaign(workload, ColocatePool()).collect_s)


def test_the_start_roles_change_only_for_a_gain() -> None:
    held = Knobs(1, 0.7, 0.5, 1.0)
    other = Knobs(2, 0.7, 0.5, 1.0)
    best, near, far = (
        CandidateResult(knobs, seconds, math.log(seconds))
        for knobs, seconds in ((other, 10.0), (held, 10.0 + 9 * HYSTERESIS), (held, 10.0 + 11 * HYSTERESIS))
    )
    assert chosen([best, near], held.judges) == near
    assert chosen([best, far], held.judges) == best
    assert chosen([best, near], None) == best, "after a cold start there is no previous start to keep"


def test_a_large_pool_is_simulated_at_a_part_of_its_size() -> None:
    """With 2,048 instances and 8,192 prompts, every 60th of both is simulated; roles are planned for the whole pool."""
    setting = dataclasses.replace(setting_of(small()), speeds=(1.0, 0.5) * 1024, prompts=8192)
    made = Search(setting, [])
    assert made.step == 60 and {len(wave.samples) for (wave,) in made.worlds} == {137 * ASSUMED_GROUP}
    assert Search(setting_of(small()), []).step == 1


@pytest.mark.parametrize("name", ["plain", "waves", "judgements"])
def test_slow_candidates_are_abandoned_without_changing_the_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name].model_copy(update={"iterations": 2})
    setting = setting_of(workload)
    past = run_campaign(workload, SplitPool(1)).past
    hasty = Search(setting, past)
    found = hasty.best(None)
    monkeypatch.setattr(Search, "_first", lambda self, knobs: self._ranked(knobs, 1)[: search.FINALISTS])
    patient = Search(setting, past)
    assert patient.best(None) == found
    assert len(hasty._logs) < len(patient._logs) == patient.replays


def test_slow_instances_judge_first() -> None:
    assert roles_of((1.0, 0.5, 1.0, 0.5), 3) == "RJJJ"
    assert roles_of((1.0, 1.0, 1.0), 1) == "RRJ"


def test_steps_are_counted_from_the_default_knobs() -> None:
    assert steps_away(Knobs(3, 0.7, 0.75, 1.5)) == 0
    assert steps_away(Knobs(3, 0.45, 0.3, 2.0, level=False)) == 4


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("judges", [0, 3])
def test_no_curve_waits_forever(name: str, judges: int) -> None:
    """Tries the steepest and the latest curves, with and without return; the simulator would report a standstill."""
    workload = WORKLOADS[name].model_copy(update={"iterations": 1})
    for onset, backlog, back in itertools.product((1.0, 0.2), (0.0, 2.0), (True, False)):
        campaign = run_campaign(workload, _Always(Knobs(judges, onset, 1.5, backlog, True, back)))
        assert all(seconds > 0 for seconds in campaign.collect_s)


def test_judges_are_added_as_batches_fill() -> None:
    """Three instances could switch while the 64 samples end; two full batches of 32 for each let only one switch."""
    workload = small(devices=4).model_copy(update={"iterations": 1})
    handed: list[int] = []
    for backlog in (0.0, 0.5, 2.0):
        lines: list[dict[str, Any]] = []
        run_campaign(workload, _Always(Knobs(0, 1.0, 1.5, backlog)), log=lines.append)
        handed.append(sum(line["do"] == "handover" for line in lines))
    assert handed[0] >= handed[1] > handed[2] == 1


class _Always:
    """A policy with the same knobs for all iterations."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs

    def plan(self, setting, past, state):
        roles = roles_of(setting.speeds, self._knobs.judges)
        return Plan(roles, CurvePolicy(self._knobs, roles, setting), None, "always")


def test_instances_drain_if_sequences_cannot_migrate():
    workload = small(judgements=2)
    setting = replace(setting_of(workload), migrates=False)
    actions: list[dict[str, Any]] = []
    run_campaign(workload, Dynamic(), seen=setting, log=actions.append)
    kinds = {action["do"] for action in actions}
    assert "take" not in kinds and not any(action.get("migrate") for action in actions)
    assert any(action["do"] in ("handover", "switch") for action in actions)


def test_an_iteration_that_drew_nothing_tells_a_plan_nothing_but_its_roles():
    """With a tail enough groups may be complete before an iteration begins."""
    workload = small()
    setting = setting_of(workload)
    campaign = run_campaign(workload, Dynamic())
    past = campaign.past[:2]
    idle = replace(past[-1], waves=(), usage=(), collect_s=0.0, judging_s=0.0)
    for fit in (False, True):
        state = Dynamic(fit).plan(setting, past[:1], {}).state
        plan = Dynamic(fit).plan(setting, [*past, idle], state)
        expected = Dynamic(fit).plan(setting, past, state)
        assert (plan.roles, plan.state, plan.reason) == (expected.roles, expected.state, expected.reason)
    alone = Dynamic().plan(setting, [idle], {})
    assert not alone.state["informed"] and alone.roles == Dynamic().plan(setting, [], {}).roles
