"""The forecast of a run's end: exact at a steady rate, deaf to waiting as a rate, moved by it as time; and its alarms."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.guards.deadline import ENOUGH, RECENT, forecast, judge_deadline, pace_of, standing
from yatt_core.spec.sections.guards import DeadlineGuard

NOW = 1_795_800_000_000
durations = st.lists(st.floats(min_value=0.01, max_value=1e5), min_size=ENOUGH, max_size=120)


@given(st.floats(min_value=0.01, max_value=1e4), st.integers(ENOUGH, 100), st.integers(1, 1000))
def test_a_steady_rate_is_exact(pace: float, iteration: int, left: int) -> None:
    made = forecast([pace] * iteration, iteration, iteration + left, NOW)
    assert made is not None and made.at == pytest.approx(NOW + 1000 * left * pace, abs=2)


@given(durations, st.integers(1, 500), st.floats(0, 1e6))
def test_waiting_is_no_rate_but_passes(seconds: list[float], left: int, waited: float) -> None:
    """A pause after a commit leaves the pace as it was, and moves the end by as much as it lasts."""
    before = forecast(seconds, 7, 7 + left, NOW)
    after = forecast(seconds, 7, 7 + left, NOW + round(1000 * waited))
    assert before is not None and after is not None
    assert after.pace == before.pace and after.at - before.at == round(1000 * waited)


@given(durations, st.integers(1, 500), st.lists(st.floats(0, 1e5), min_size=2, max_size=9))
def test_while_an_iteration_is_held_up_the_end_never_comes_nearer(
    seconds: list[float], left: int, held: list[float]
) -> None:
    ends = []
    for took in sorted(held):
        made = forecast(seconds, 7, 7 + left, NOW + round(1000 * took), took)
        assert made is not None
        ends.append(made.at)
        assert made.at >= NOW + math.floor(1000 * took) + 1000 * (left - 1) * made.pace - 2
    assert all(later >= earlier - 2 for earlier, later in itertools.pairwise(ends))


@given(durations, st.floats(min_value=1.01, max_value=50.0))
def test_slower_iterations_end_later(seconds: list[float], factor: float) -> None:
    plain = pace_of(seconds)
    slower = pace_of([factor * each for each in seconds])
    assert plain is not None and slower == pytest.approx(factor * plain)


@given(durations, st.floats(min_value=0, max_value=1e9))
def test_one_suspension_is_worth_ten_iterations_at_most(seconds: list[float], suspended: float) -> None:
    steady = [3.0] * RECENT
    pace = pace_of([*steady, suspended])
    assert pace is not None and pace <= 3.0 * (RECENT - 1 + 10) / RECENT + 1e-9


def test_periodic_evaluations_are_in_the_rate() -> None:
    seconds = [9.0 if iteration % 10 == 0 else 2.0 for iteration in range(200)]
    assert pace_of(seconds) == pytest.approx(2.7)


@given(st.lists(st.floats(min_value=0.01, max_value=1e5), max_size=ENOUGH - 1))
def test_few_iterations_are_no_rate(seconds: list[float]) -> None:
    assert forecast(seconds, len(seconds), 100, NOW) is None


def alarms(at: datetime | None, action: str = "alert", iteration: int = 100) -> list[tuple[str, str, str]]:
    guard = DeadlineGuard.model_validate({"at": at, "action": action})
    expected = forecast([10.0] * 100, iteration, 400, NOW)
    return [
        (alarm.name, alarm.action, alarm.finding.text)
        for alarm in judge_deadline(guard, "toy-1", iteration, expected, NOW)
    ]


def test_the_alarm_comes_before_the_deadline_is_missed() -> None:
    now = datetime.fromtimestamp(NOW / 1000, UTC)
    assert alarms(None) == [] and alarms(now + timedelta(seconds=3001)) == []
    ((name, action, text),) = alarms(now + timedelta(seconds=2999), "stop")
    assert name.endswith(".late") and action == "alert"
    assert text.startswith("at this rate iteration 400 on ") and ", the deadline is " in text
    ((name, action, text),) = alarms(now, "pause")
    assert not name.endswith(".late") and action == "pause" and "yatt resume toy-1 --set guards.deadline.at=" in text


def test_what_is_shown() -> None:
    made = forecast([60.0] * 9, 390, 400, int(datetime(2026, 11, 28, 3, 0, tzinfo=UTC).timestamp() * 1000))
    deadline = datetime(2026, 11, 27, 18, 0, tzinfo=UTC)
    assert standing(made, deadline) == (
        "at this rate iteration 400 on Saturday 2026-11-28 03:10 UTC, the deadline is Friday 2026-11-27 18:00 UTC"
    )
    assert standing(None, None) == ""
