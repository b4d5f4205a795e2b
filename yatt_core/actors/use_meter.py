"""How busy an actor's device was between two readings, in percent, and what its process holds.

On CPU cores this is the processor time of the actor's process and its children. The use of a GPU is sampled by a thread,
if nvidia-ml-py is installed.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

from yatt_core.actors.holdings import descendants, own_gpus, own_holdings
from yatt_core.cluster.gpus import Gpus
from yatt_core.protocols.receipts import Holdings
from yatt_core.spent_time import SpentTime

SAMPLE_SECONDS = 1.0
FRESH_SECONDS = 5.0
"""Readings of memory within this time are the same: looking for children reads all processes of the machine."""


class ProcessUse(NamedTuple):
    """What an actor uses.

    utilization: how busy its device was since the last reading, in percent; None if it has none or that is not known.
    holds: the memory of its process and children.
    spent: where the time of its calls went since the last reading.
    """

    utilization: float | None
    holds: Holdings
    spent: tuple[SpentTime, ...] = ()


class MemoryMeter:
    """Reads what this process and its children hold, at most once in `FRESH_SECONDS`."""

    def __init__(self) -> None:
        self._at = -FRESH_SECONDS
        self._holds = Holdings()

    def read(self) -> Holdings:
        """Returns the newest reading."""
        now = time.monotonic()
        if now - self._at >= FRESH_SECONDS:
            self._at = now
            self._holds = own_holdings()
        return self._holds


class UseMeter:
    """Measures from its creation on, in the actor's process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._at = time.monotonic()
        self._spent = self._processor_seconds()
        self._samples: list[float] = []
        self._gpus: Gpus | None = None
        if numbers := own_gpus():
            self._gpus = Gpus([int(number) for number in numbers])
            threading.Thread(target=self._sample, args=(self._gpus,), name="use", daemon=True).start()

    def read(self) -> float | None:
        """Returns the use since the last reading; None if it is not known."""
        if self._gpus is not None:
            samples = self._samples
            self._samples = []
            return sum(samples) / len(samples) if samples else None
        before = self._at
        spent_before = self._spent
        self._at = time.monotonic()
        self._spent = self._processor_seconds()
        # A child that has ended takes its time with it.
        return 100.0 * max(0.0, self._spent - spent_before) / max(self._at - before, 1e-9)

    def _processor_seconds(self) -> float:
        seconds = 0.0
        for each in (self._process, *descendants()):
            with suppress(psutil.Error):  # it may just have ended
                times = each.cpu_times()
                seconds += times.user + times.system
        return seconds

    def _sample(self, gpus: Gpus) -> None:
        while True:
            if (now := gpus.utilization()) is not None:
                self._samples.append(now)
            time.sleep(SAMPLE_SECONDS)
