"""Measures an iteration in progress: wall time, and bytes that reached the driver."""

from __future__ import annotations

from dataclasses import dataclass

from flows.run.clock import Clock
from yatt_core.cluster.metering import BytesMeter


@dataclass(frozen=True, slots=True)
class IterationMeter:
    """The meter of one iteration.

    began: the clock's reading at the start.
    bytes_before: the byte counter's reading at the start.
    """

    clock: Clock
    counter: BytesMeter
    began: float
    bytes_before: int

    @classmethod
    def start(cls, clock: Clock, counter: BytesMeter) -> IterationMeter:
        """Returns a meter that starts now."""
        return cls(clock, counter, clock.monotonic(), counter.total)

    @property
    def seconds(self) -> float:
        """Seconds since the iteration began."""
        return self.clock.monotonic() - self.began

    @property
    def driver_bytes(self) -> int:
        """Bytes that have reached the driver since the iteration began."""
        return self.counter.total - self.bytes_before
