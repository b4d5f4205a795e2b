"""The model of time and cost: compared with a simulated run that is interrupted at random, and with Young's rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.queueing.ettr import (
    PRIOR_DEVICE_DAYS,
    RunTimes,
    best_interval,
    ettr,
    failure_rate,
    interruption_seconds,
    stop_cost,
)
from flows.queueing.forecasts import Outlook, expected_price, forecast, relative_error
from flows.queueing.pools import DAY

TIMES = RunTimes(iteration=100.0, checkpoint=20.0, restart=150.0, replay=30.0)


def simulated_ettr(times: RunTimes, every: int, rate: float, iterations: int, seed: int) -> float:
    """Plays a run that is interrupted by a Poisson process; returns its ratio of useful to held time."""
    random = np.random.default_rng(seed)
    now = 0.0
    done = 0
    kept = 0
    failure = random.exponential(1 / rate)

    def spend(seconds: float) -> bool:
        """Returns False if an interruption comes first."""
        nonlocal now, failure
        if now + seconds < failure:
            now += seconds
            return True
        now = failure
        failure = now + random.exponential(1 / rate)
        return False

    def recover() -> None:
        while not spend(times.restart + (done - kept) * times.replay):
            pass

    while done < iterations:
        if not spend(times.iteration):
            recover()
            continue
        done += 1
        while done - kept >= every:
            if spend(times.checkpoint):
                kept = done
            else:
                recover()
    return iterations * times.iteration / now


@pytest.mark.parametrize(("every", "hours"), [(5, 4.0), (20, 10.0), (40, 48.0)])
def test_the_ratio_is_that_of_a_simulated_run(every: int, hours: float) -> None:
    rate = 1 / (hours * 3600)
    expected = simulated_ettr(TIMES, every, rate, 30_000, seed=every)
    assert ettr(TIMES, every, rate) == pytest.approx(expected, abs=0.01)


def test_the_interval_is_youngs_if_a_replay_takes_as_long_as_the_iteration() -> None:
    times = RunTimes(10.0, 30.0, 0.0, 10.0)
    rate = 1 / 20_000
    assert best_interval(times, rate, 10_000) * times.iteration == pytest.approx(math.sqrt(2 * 30.0 / rate), rel=0.03)


@given(
    checkpoint=st.floats(0.1, 100.0),
    replay=st.floats(0.1, 100.0),
    hours=st.floats(0.5, 1000.0),
    most=st.integers(1, 60),
)
def test_no_other_interval_is_better(checkpoint: float, replay: float, hours: float, most: int) -> None:
    times = RunTimes(100.0, checkpoint, 100.0, replay)
    rate = 1 / (hours * 3600)
    best = max(ettr(times, every, rate) for every in range(1, most + 1))
    assert ettr(times, best_interval(times, rate, most), rate) == pytest.approx(best, rel=1e-4)


def test_without_failures_checkpoints_are_rare_and_free_ones_are_taken_always() -> None:
    assert best_interval(TIMES, 0.0, 50) == 50
    assert best_interval(RunTimes(100.0), 1e-4, 50) == 1


def test_what_was_seen_outweighs_what_was_expected_in_time() -> None:
    seconds = 3 * PRIOR_DEVICE_DAYS * DAY
    assert failure_rate(0.1, 0, 0.0) * DAY == pytest.approx(0.1)
    assert failure_rate(0.1, 90, seconds) * DAY == pytest.approx((0.1 + 3.0) / 4)


def test_a_stop_at_the_next_commit_wastes_a_restart_and_one_within_a_bound_the_iteration() -> None:
    assert stop_cost(TIMES, 40.0, None) == (80.0, 170.0)
    assert stop_cost(TIMES, 40.0, 90.0) == (80.0, 170.0)
    assert stop_cost(TIMES, 40.0, 10.0) == (10.0, 220.0)
    assert interruption_seconds(TIMES, 10) == 150.0 + 50.0 + 150.0


def test_a_forecast_multiplies_what_is_left_by_the_ratio_and_the_price() -> None:
    plain = forecast(Outlook(TIMES, left=100, every=10, devices=8), 2.0)
    assert plain.held_seconds == pytest.approx(100 * 102.0)
    assert plain.cost == pytest.approx(10_200 / 3600 * 8 * 2.0)
    worse = forecast(Outlook(TIMES, 100, 10, 8, failures=1e-4, stops=1e-4, wait=600.0), None)
    assert worse.cost is None
    assert worse.end_seconds > worse.held_seconds > plain.held_seconds


def test_the_price_after_an_interruption_is_that_of_the_pools_as_they_are_used() -> None:
    prices = {"main": 4.0, "spot": 1.0}
    held = {"main": 3.0, "spot": 1.0}
    assert expected_price(prices, "spot", held, 0.0) == 1.0
    assert expected_price(prices, "spot", held, 1e9) == pytest.approx(3.25)
    assert 1.0 < expected_price(prices, "spot", held, 1.0) < 3.25


def test_errors_are_relative_to_what_happened() -> None:
    assert relative_error(9.0, 10.0) == pytest.approx(0.1)
    assert relative_error(0.0, 0.0) == 0.0
