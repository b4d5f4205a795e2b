"""What it takes to ask endpoints: sums that may be added in any order, percentiles, and what is kept of single scores."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.judges.effort import (
    LATENCY_STEP,
    SHORTEST_SECONDS,
    add_effort,
    dearest,
    effort_figures,
    remarkable,
    slowest,
)
from yatt_core.protocols.judges import Effort, ScoreEffort


def effort(
    latencies: tuple[float, ...] = (1.0,), retries: int = 0, cost: float | None = None, waited: float = 0.0
) -> Effort:
    return Effort(
        seconds=sum(latencies),
        waited=waited,
        retries=retries,
        outcomes={"200": len(latencies), "429": retries},
        latencies=latencies,
        tokens=3,
        prompt_tokens=11,
        cost=cost,
    )


@given(st.lists(st.floats(SHORTEST_SECONDS, 1e4), min_size=1, max_size=60), st.integers(0, 60))
def test_percentiles_of_several_shards_are_right_to_within_a_class(latencies: list[float], cut: int) -> None:
    shards: list[dict[str, float]] = [{}, {}]
    for number, seconds in enumerate(latencies):
        add_effort(shards[number >= cut], "judge", effort((seconds,)))
    whole = {key: sum(shard.get(key, 0.0) for shard in shards) for key in {*shards[0], *shards[1]}}
    figures = effort_figures(whole)
    for percent in (50, 95):
        exact = sorted(latencies)[math.ceil(len(latencies) * percent / 100) - 1]
        found = figures[f"endpoints/judge/latency_p{percent}"]
        assert exact * (1 - 1e-9) <= found <= exact * LATENCY_STEP * (1 + 1e-9)


def test_sums_are_by_part_and_cost_is_there_only_with_prices() -> None:
    sums: dict[str, float] = {"generate": 3.0}
    add_effort(sums, "judge", effort(retries=2, waited=1.5))
    add_effort(sums, "judge", effort(cost=0.25))
    add_effort(sums, "other", effort())
    figures = effort_figures(sums)
    assert figures["endpoints/judge/requests"] == 4.0 and figures["endpoints/judge/retries"] == 2.0
    assert figures["endpoints/judge/status/429"] == 2.0 and figures["endpoints/judge/status/200"] == 2.0
    assert figures["endpoints/judge/waiting_seconds"] == 1.5 and figures["endpoints/judge/cost"] == 0.25
    assert "endpoints/other/cost" not in figures and "generate" not in figures


def test_what_is_no_class_of_latencies_counts_as_lost() -> None:
    assert (
        effort_figures({"endpoints/j/latency/x": 1.0, "endpoints": 2.0, "endpoints/j": 3.0, "other/j/retries": 1.0})
        == {}
    )


def one(number: int, seconds: float, cost: float | None, part: str = "judge") -> ScoreEffort:
    return ScoreEffort(part, number, f"p{number}", 0, seconds, 0.0, 0, 3, 11, cost)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=30), st.integers(1, 5))
def test_kept_are_the_slowest_and_the_dearest_however_they_come(each: list[tuple[float, float]], count: int) -> None:
    efforts = [one(number, *values) for number, values in enumerate(each)]
    kept: tuple[ScoreEffort, ...] = ()
    for effort in efforts:
        kept = remarkable([*kept, effort], count)
    assert slowest(kept, count) == slowest(efforts, count) and dearest(kept, count) == dearest(efforts, count)
    assert len(kept) <= 2 * count


def test_a_part_does_not_hide_another() -> None:
    kept = remarkable([one(1, 9.0, None), one(2, 1.0, None, part="other")], count=1)
    assert {effort.part for effort in kept} == {"judge", "other"} and dearest(kept, 5) == []
    assert slowest(kept, 1)[0].seconds == pytest.approx(9.0)
