"""The runs, failures and reclaims of the simulated days, drawn from a seed.

Consumes a seed and the pools; produces `Job`s in the order of their arrival, and `Outage`s of devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flows.queueing.ettr import RunTimes
from flows.queueing.pools import DAY, HOUR, PoolsSpec, parse_pools
from yatt_core.keys import stable_seed

DAYS = 7
LOAD = 0.95
SIZES = {"main": {8: 0.4, 16: 0.3, 32: 0.2, 64: 0.1}, "spot": {8: 0.5, 16: 0.3, 32: 0.2}}
"""Probability of each number of devices."""
MEDIAN_SECONDS = 1.5 * HOUR
SIGMA = 1.0
"""Log-normal durations: their median, and the deviation of their logarithm."""
EITHER_FRACTION = 0.5
"""Fraction of the main pool's runs that accept spot devices; the runs of the spot pool accept all devices."""
HIGH_FRACTION = 0.2
NORMAL = 0
HIGH = 2
ITERATION_SECONDS = (60.0, 240.0)
NOISE = 0.15
"""Deviation of the logarithm of single iterations' seconds."""
DRIFT = 0.15
"""Iterations become slower or faster by up to this fraction until the run's end, as responses grow or shrink."""
RECLAIM_HOURS = 8.0
AWAY_HOURS = 1.0
RECLAIMED = 8
NOTICE_SECONDS = 60.0
"""Reclaims of spot devices: mean time between them, mean time away, devices, and the notice that every second one gets."""
FAILURES_PER_DEVICE_DAY = 0.001

POOLS = {
    "pools": {
        "main": {
            "devices": 96,
            "price": {"currency": "EUR", "per_device_hour": 2.5},
            "failures_per_device_day": FAILURES_PER_DEVICE_DAY,
            "quotas": {"evaluation": 80},
        },
        "spot": {
            "devices": 32,
            "spot": True,
            "price": {"currency": "EUR", "per_device_hour": 1.0},
            "failures_per_device_day": 0.05,
        },
    },
    "owners": {"ada": 112},
    "ageing_hours": 12,
    "stop_seconds": 300,
}
OWNERS = ("ada", "ben", "cleo", "dan")
PROJECTS = ("chat", "code", "evaluation")


@dataclass(frozen=True, slots=True)
class Job:
    """A run that arrives.

    pools: those that it can use, the preferred one first.
    iterations: seconds of each.
    """

    run: str
    pools: tuple[str, ...]
    owner: str
    project: str
    priority: int
    devices: int
    at: float
    iterations: tuple[float, ...]
    times: RunTimes

    @property
    def useful_seconds(self) -> float:
        """Time of its iterations."""
        return sum(self.iterations)


@dataclass(frozen=True, slots=True)
class Outage:
    """Devices that are away for a while.

    notice: seconds between the notice and their loss; 0 without notice.
    """

    pool: str
    devices: tuple[int, ...]
    at: float
    until: float
    notice: float


def pools() -> PoolsSpec:
    """Returns the pools of the simulation."""
    return parse_pools(POOLS, "the benchmark's pools")


def jobs(seed: int, spec: PoolsSpec) -> list[Job]:
    """Returns the runs that arrive within the days, in order."""
    found = [job for pool in sorted(spec.pools) for job in _of_pool(seed, pool, len(spec.pools[pool].numbers))]
    return sorted(found, key=lambda job: (job.at, job.run))


def outages(seed: int, spec: PoolsSpec) -> list[Outage]:
    """Returns the reclaims of spot devices, with and without notice, and failures of single devices, in order."""
    found: list[Outage] = []
    for name, pool in sorted(spec.pools.items()):
        random = np.random.default_rng(stable_seed(f"outages of {name}", seed))
        hours = RECLAIM_HOURS if pool.spot else 24.0 / (FAILURES_PER_DEVICE_DAY * len(pool.numbers))
        count = RECLAIMED if pool.spot else 1
        for number, at in enumerate(_arrivals(random, hours * HOUR)):
            first = int(random.integers(0, len(pool.numbers) - count + 1))
            notice = NOTICE_SECONDS if pool.spot and number % 2 == 0 else 0.0
            away = float(random.exponential(AWAY_HOURS * HOUR))
            found.append(
                Outage(
                    pool=name,
                    devices=pool.numbers[first : first + count],
                    at=at,
                    until=at + notice + away,
                    notice=notice,
                )
            )
    return sorted(found, key=lambda outage: outage.at)


def _of_pool(seed: int, pool: str, devices: int) -> Iterator[Job]:
    random = np.random.default_rng(stable_seed(f"jobs of {pool}", seed))
    sizes = list(SIZES[pool])
    odds = list(SIZES[pool].values())
    seconds = MEDIAN_SECONDS * float(np.exp(SIGMA**2 / 2))
    each = seconds * float(np.dot(sizes, odds))
    for number, at in enumerate(_arrivals(random, each / (LOAD * devices))):
        duration = MEDIAN_SECONDS * float(np.exp(SIGMA * random.standard_normal()))
        owner = str(random.choice(OWNERS))
        project = str(random.choice(PROJECTS))
        count = int(random.choice(sizes, p=odds))
        other = "main" if pool == "spot" else "spot"
        either = pool == "spot" or (count in SIZES[other] and random.random() < EITHER_FRACTION)
        spans = (5.0, 30.0), (60.0, 180.0), (10.0, 30.0)
        yield Job(
            run=f"{pool}-{number}",
            pools=(pool, other) if either else (pool,),
            owner=owner,
            project=project,
            priority=HIGH if random.random() < HIGH_FRACTION else NORMAL,
            devices=count,
            at=at,
            iterations=_iterations(random, duration),
            times=RunTimes(0.0, *(float(random.uniform(*span)) for span in spans)),
        )


def _iterations(random: np.random.Generator, duration: float) -> tuple[float, ...]:
    mean = float(random.uniform(*ITERATION_SECONDS))
    count = max(5, round(duration / mean))
    drift = 1.0 + float(random.uniform(-DRIFT, DRIFT)) * np.linspace(0.0, 1.0, count)
    noise = np.exp(NOISE * random.standard_normal(count) - NOISE**2 / 2)
    return tuple(float(each) for each in mean * drift * noise)


def _arrivals(random: np.random.Generator, mean_seconds: float) -> Iterator[float]:
    at = float(random.exponential(mean_seconds))
    while at < DAYS * DAY:
        yield at
        at += float(random.exponential(mean_seconds))
