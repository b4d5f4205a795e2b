"""Predictions of a run's end and cost, and their scores once the run has ended.

Consumes a run's times, what is left of it, and rates of interruptions; produces a `Forecast`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1

from flows.queueing.ettr import RunTimes, ettr
from flows.queueing.pools import HOUR


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a forecast is made from.

    left: iterations that are left.
    every: iterations between checkpoints.
    failures: unforeseen interruptions of the run in a second.
    stops: preemptions of the run in a second that it holds devices; each costs a restart.
    wait: mean seconds of waiting after an interruption of either kind.
    """

    times: RunTimes
    left: int
    every: int
    devices: int
    failures: float = 0.0
    stops: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction.

    held_seconds: time for which the run will hold its devices from now on.
    end_seconds: time to its end, with waiting.
    cost: of the devices from now on; None without a price.
    ettr: predicted ratio of useful to held time.
    """

    held_seconds: float
    end_seconds: float
    cost: float | None
    ettr: float


def forecast(outlook: Outlook, per_device_hour: float | None) -> Forecast:
    """Returns the prediction for a run that holds devices, or gets them now."""
    times = outlook.times
    ratio = ettr(times, outlook.every, outlook.failures)
    planned = 1.0 - min(0.9, outlook.stops * (times.restart + times.checkpoint))
    held = outlook.left * times.iteration / (ratio * planned)
    cost = None if per_device_hour is None else held / HOUR * outlook.devices * per_device_hour
    return Forecast(held, held * (1.0 + (outlook.failures + outlook.stops) * outlook.wait), cost, ratio * planned)


def expected_price(prices: Mapping[str, float], now: str, held: Mapping[str, float], interruptions: float) -> float:
    """Returns the mean price of a run's devices over the rest of the run.

    prices: of each pool that it can use.
    now: the pool whose devices it holds.
    held: device-seconds that runs with these pools have held in each, by which the pool after an interruption is predicted.
    interruptions: expected number in the rest. As a Poisson process, they leave (1 - e^-n) / n of it to the first allocation.
    """
    weights = {pool: held.get(pool, 0.0) for pool in prices}
    total = sum(weights.values())
    if total <= 0.0 or interruptions <= 0.0:
        return prices[now]
    later = sum(price * weights[pool] for pool, price in prices.items()) / total
    first = -expm1(-interruptions) / interruptions
    return first * prices[now] + (1.0 - first) * later


def relative_error(predicted: float, actual: float) -> float:
    """Returns |predicted - actual| / actual; 0 if both are 0."""
    return abs(predicted - actual) / actual if actual else abs(predicted)
