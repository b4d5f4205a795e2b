"""How busy an actor's device was between two readings, in percent.

On CPU cores this is the processor time of the actor's process and its children. The use of a GPU is sampled by a thread,
if nvidia-ml-py is installed.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import psutil

from yatt_core.actors.holdings import own_gpus
from yatt_core.cluster.gpus import Gpus

SAMPLE_SECONDS = 1.0


class UseMeter:
    """Measures from its creation on, in the actor's process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._at, self._spent = time.monotonic(), self._processor_seconds()
        self._samples: list[float] = []
        self._gpus: Gpus | None = None
        if numbers := own_gpus():
            self._gpus = Gpus([int(number) for number in numbers])
            threading.Thread(target=self._sample, args=(self._gpus,), name="use", daemon=True).start()

    def read(self) -> float | None:
        """Returns the use since the last reading; None if it is not known."""
        if self._gpus is not None:
            samples, self._samples = self._samples, []
            return sum(samples) / len(samples) if samples else None
        before, spent_before = self._at, self._spent
        self._at, self._spent = time.monotonic(), self._processor_seconds()
        # A child that has ended takes its time with it.
        return 100.0 * max(0.0, self._spent - spent_before) / max(self._at - before, 1e-9)

    def _processor_seconds(self) -> float:
        seconds = 0.0
        for each in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.Error):  # it may just have ended
                times = each.cpu_times()
                seconds += times.user + times.system
        return seconds

    def _sample(self, gpus: Gpus) -> None:
        while True:
            if (now := gpus.utilization()) is not None:
                self._samples.append(now)
            time.sleep(SAMPLE_SECONDS)
