"""Describes a simulated run: durations of its phases, faults and their times. Seeded; printed with the results.

A fault belongs to an iteration and strikes at a uniformly drawn fraction of that iteration's time, during the first
attempt at it. All recovery methods therefore suffer the same faults, and a slower one does not suffer more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

TRAINER = "trainer rank"
ENGINE = "engine"
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of a run's phases, in seconds.

    stall: how long the trainer stands still for a checkpoint.
    publish: until a checkpoint is durable, in the background.
    learn, sync: 80 s together.
    prepare: stands for all other phases.
    reload: until lost actors are replaced, including the loading of the checkpoint.
    """

    collect: float = 210.0
    prepare: float = 10.0
    learn: float = 65.0
    sync: float = 15.0
    stall: float = 15.0
    publish: float = 60.0
    reload_trainer: float = 120.0
    reload_engine: float = 60.0
    reload_driver: float = 15.0

    @property
    def iteration(self) -> float:
        """The seconds of an undisturbed iteration without a checkpoint."""
        return self.collect + self.prepare + self.learn + self.sync

    def reload(self, kind: str) -> float:
        """Returns the seconds until the actors lost to a fault are replaced."""
        return {TRAINER: self.reload_trainer, ENGINE: self.reload_engine, DRIVER: self.reload_driver}[kind]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. share: the elapsed fraction of its iteration's time when it strikes, in [0, 1)."""

    kind: str
    share: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A run's iterations and the faults that strike it, by iteration."""

    iterations: int
    faults: Mapping[int, Fault]
    durations: Durations = Durations()


def draw_trace(faults: int, iterations_per_fault: int, seed: int, durations: Durations) -> Trace:
    """Draws `faults` faults over `faults * iterations_per_fault` iterations, each equally likely to be hit.

    40 % hit trainer ranks, 40 % engines, 20 % drivers, in random order.
    """
    source = random.Random(seed)
    iterations = faults * iterations_per_fault
    kinds = [TRAINER] * (2 * faults // 5) + [ENGINE] * (2 * faults // 5)
    kinds += [DRIVER] * (faults - len(kinds))
    source.shuffle(kinds)
    struck = sorted(source.sample(range(1, iterations + 1), faults))
    return Trace(
        iterations,
        {iteration: Fault(kind, source.random()) for iteration, kind in zip(struck, kinds, strict=True)},
        durations,
    )
