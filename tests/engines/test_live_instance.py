"""A live virtual instance keeps the simulator's times, however late its timers fire, and evicts what it is told to."""

from __future__ import annotations

import asyncio

import pytest

from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.live import LiveInstance
from yatt_core.placement.simulation.instance import Request, Sample, SimulatedSequence
from yatt_core.placement.work import SampleWork
from yatt_core.placement.workload import EngineConstants

CONSTANTS = EngineConstants(
    base_s=0.01, per_sequence_s=0.001, per_context_token_s=1e-6, per_prompt_token_s=1e-4, max_concurrent=64
)
NOBODY = Sample(SampleWork(0, False, 0, (1,), (), ()))


class ManualClock(ScaledClock):
    """A clock that moves only when its time is set."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def real_seconds(self, seconds: float) -> float:
        return 0.0


def lived(lengths: list[int], late: float, evict_at: float | None = None) -> tuple[list[tuple[int, int]], LiveInstance]:
    """Runs an instance and returns each leaving sequence's number and missing tokens.

    late: how far the clock advances in one step.
    """
    left: list[tuple[int, int]] = []

    async def live() -> LiveInstance:
        clock = ManualClock()
        instance = LiveInstance(0, 1.0, clock)
        instance.serve("R", CONSTANTS)
        for number, length in enumerate(lengths):
            instance.submit(
                Request(10, (SimulatedSequence(NOBODY, number, length, 10),)), lambda s: left.append((s.number, s.left))
            )
        evicted = evict_at is None
        while len(left) < len(lengths) and not (left and evict_at):
            clock.time += late
            if not evicted and evict_at is not None and clock.time >= evict_at:
                instance.evict(1)
                evicted = True
            await asyncio.sleep(0.001)
        return instance

    return left, asyncio.run(live())


@pytest.mark.parametrize("late", [0.001, 0.05, 10.0])
def test_late_timers_change_neither_the_order_nor_the_work(late: float) -> None:
    left, instance = lived([3, 9, 1, 5], late)
    assert left == [(2, 0), (0, 0), (3, 0), (1, 0)]
    other, punctual = lived([3, 9, 1, 5], 0.001)
    assert (other, punctual.usage()) == (left, instance.usage())
    assert sum(row.sequence_steps for row in lived([3, 9, 1, 5], late)[1].usage()) == 18


def test_the_newest_sequence_is_evicted_with_its_missing_tokens() -> None:
    left, _ = lived([50, 50], 0.02, evict_at=0.2)
    ((number, lacking),) = left
    assert number == 1 and 0 < lacking < 50
