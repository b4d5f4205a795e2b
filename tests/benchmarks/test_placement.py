"""The placement benchmark's own arithmetic: the best split, changed starts, and undefined figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.placement import Outcome, best_split, changed_starts, figures_of, golden_of
from benchmarks.placement_live import recorded_runtime_policy
from tests.placement.workloads import described, small
from yatt_core.placement.actions import Intake, action_line, serves_line
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import Plan
from yatt_core.placement.simulation.campaign import Campaign, setting_of


@pytest.mark.parametrize("instances", [2, 16, 17, 64, 512])
def test_the_best_split_is_found(instances: int) -> None:
    for best in {1, min(2, instances - 1), max(1, instances // 3), instances // 2, instances - 1}:
        tried: set[int] = set()

        def total(judges: int, best: int = best, tried: set[int] = tried) -> float:
            tried.add(judges)
            return abs(judges - best) / instances

        assert best_split(total, instances) == best
        assert tried <= set(range(1, instances)) and len(tried) < 40, "each role needs at least one instance"


def campaign(*roles: str) -> Campaign:
    return Campaign(plans=[Plan(each, Hold(), None, "") for each in roles])


def test_the_change_from_the_cold_start_does_not_count() -> None:
    assert changed_starts(campaign("RRR", "RRJ", "RRJ")) == 0
    assert changed_starts(campaign("RRR", "RRJ", "RJJ")) == 1
    assert changed_starts(campaign("RRR", "RRR", "RRJ", "RRR")) == 2
    assert changed_starts(campaign("RRR")) == 0


def outcome(name: str, counted: bool = True, steady: bool = True) -> Outcome:
    return Outcome(
        name=name, steady=steady, counted=counted, colocate=[10.0, 10.0], splits={1: [9.0, 9.0], 2: [8.0, 8.0]},
        bound=[4.0, 4.0], dynamic=[6.0, 8.0], fitted=[8.0, 8.0], judge_share=0.5, changed_starts=1, plan_cpu_s=0.5,
        tick_cpu_s=0.1, golden=None,
    )  # fmt: skip


def test_figures_are_ratios_of_sums_and_null_if_undefined() -> None:
    found = figures_of([outcome("mine", counted=False, steady=False)])
    assert {key for key, value in found.items() if value is None} == {
        "golden_gap_max", "ratio_sudden_shift", "ratio_drift", "least_reduction_vs_colocate", "mean_reduction_vs_colocate",
        "changed_starts_per_10_steady",
    }  # fmt: skip
    assert found["worst_ratio_to_best_split"] == 14 / 16 and found["worst_ratio_to_best_split_fitted"] == 1.0
    assert found["worst_ratio_to_colocate"] == 14 / 20 and found["worst_iteration_ratio_to_colocate"] == 0.8
    both = figures_of([outcome("sudden_shift"), outcome("drift_500_to_8000")])
    assert both["ratio_sudden_shift"] == both["ratio_drift"] == 14 / 16
    assert both["least_reduction_vs_colocate"] == pytest.approx(0.3) and both["changed_starts_per_10_steady"] == 5.0


def test_only_a_described_workload_has_golden_figures() -> None:
    known = described("w01")
    golden = golden_of(known)
    assert golden is not None and len(golden["colocate"]["per_iteration"]) == known.iterations
    assert golden_of(known.model_copy(update={"seed": known.seed + 1})) is None and golden_of(small()) is None


def test_recorded_actions_are_taken_at_the_start_of_a_control_period() -> None:
    setting = setting_of(small())
    period = setting.control_period_s
    late = Intake(1, 4)
    lines = [
        {"t": 0.01, **serves_line(0, "J")},
        {"t": 2.3 * period, **action_line(Intake(0, None))},
        {"t": 3.1 * period, **action_line(late)},
    ]
    runtime_policy = recorded_runtime_policy({"actions": lines}, setting)

    def at(now: float) -> Any:
        pool: Any = SimpleNamespace(now=now, instances=())
        return runtime_policy.act(Moment.TICK, pool)

    assert [at(period), at(2 * period), at(2 * period), at(4 * period)] == [[], [Intake(0, None)], [], [late]]
