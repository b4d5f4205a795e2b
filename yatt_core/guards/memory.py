"""The guard of memory that creeps: a process that holds more from iteration to iteration, on its host or its device.

Pure. The slope over the window is Theil and Sen's: the median of the slopes between all pairs of values. A start, a
restart or a single large batch moves few of the pairs, so it is no creep; nor is growth that levels off, since both
halves of the window must grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from yatt_core.guards.findings import Finding, MetricValue
from yatt_core.guards.rules import Series, listed, span
from yatt_core.spec.sections.guards import CreepingMemoryGuard

DRIVER = "driver"
HOST = "host_megabytes"
DEVICE = "device_megabytes"
STEADY = 0.7
"""Minimum slope of each half of the window, as a fraction of the whole window's: what levels off does not creep."""


def memory_metric(process: str, kind: str) -> str:
    """Returns the name of the metric of a process's memory. kind: `HOST` or `DEVICE`."""
    return f"memory/{process}/{kind}"


@dataclass(frozen=True, slots=True)
class Creep:
    """Growth over a window. slope: megabytes an iteration. grown: megabytes over the window."""

    slope: float
    grown: float


def creep_of(window: Sequence[MetricValue], guard: CreepingMemoryGuard) -> Creep | None:
    """Returns how much a process's memory creeps over a full window; None if it does not by the guard's bounds."""
    usual = median(point.value for point in window)
    bound = max(guard.megabytes, guard.growth * usual)
    steps = window[-1].iteration - window[0].iteration
    # Most windows are told apart without all pairs.
    if median(point.value for point in window[-5:]) - median(point.value for point in window[:5]) < bound / 2:
        return None
    slope = slope_of(window)
    half = len(window) // 2
    steady = min(slope_of(window[:half]), slope_of(window[half:])) >= STEADY * slope
    return Creep(slope, slope * steps) if slope * steps >= bound and steady else None


def slope_of(points: Sequence[MetricValue]) -> float:
    """Returns the median of the slopes between all pairs of points, per iteration."""
    return median((b.value - a.value) / (b.iteration - a.iteration) for a, b in combinations(points, 2))


@dataclass(frozen=True, slots=True)
class CreepingMemoryRule:
    """Finds the process whose memory creeps most.

    processes: the names of the run's processes.
    """

    guard: CreepingMemoryGuard
    processes: tuple[str, ...]
    name: str = "creeping_memory"

    @property
    def action(self) -> str:
        """The action that an alarm triggers."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """Memory of each process, on its host and on its device."""
        return tuple(memory_metric(process, kind) for process in self.processes for kind in (HOST, DEVICE))

    @property
    def depth(self) -> int:
        """Length of the window."""
        return self.guard.window

    def judge(self, series: Series, since: int) -> Finding | None:
        """Returns a finding for the process that has grown most over its window."""
        found = list(self._creeping(series, since))
        if not found:
            return None
        metric, window, creep = max(found, key=lambda each: each[2].grown)
        text = (
            f"{metric} has grown by {creep.slope:.4g} MB an iteration over {span(window)}, by {creep.grown:.4g} MB in all, "
            f"to {window[-1].value:.4g} MB"
        )
        if len(found) > 1:
            text += f"; so have {len(found) - 1} others"
        evidence = {
            "metric": metric,
            "bound": "growth",
            "observed": creep.grown,
            "slope": creep.slope,
            "threshold": self.guard.growth,
            "others": sorted(other for other, _, _ in found if other != metric),
            "window": listed(window),
        }
        return Finding(text, window[0].iteration, evidence)

    def _creeping(self, series: Series, since: int) -> Iterator[tuple[str, Sequence[MetricValue], Creep]]:
        newest = max((series[metric][-1].iteration for metric in self.metrics if series[metric]), default=-1)
        for metric in self.metrics:
            window = series[metric][-self.guard.window :]
            if len(window) < self.guard.window or window[0].iteration <= since or window[-1].iteration < newest:
                continue
            creep = creep_of(window, self.guard)
            if creep is not None:
                yield metric, window, creep
