"""Measures how much of the driver's machine is in use, in the units and under the names that trackers expect.

Consumes the counters of the operating system and, if nvidia-ml-py is installed, of the GPUs' driver. Produces metrics of
class timing: processor and network figures from counters, which cover the whole time since the last reading; memory, disk
and GPU figures from samples. A thread takes the samples, because a broken disk or GPU may never answer: they are then
left out, and the run goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from yatt_core.cluster.gpus import MEGABYTE, Gpus

SAMPLE_SECONDS = 5.0
STALE_SECONDS = 15.0


class MachineMeter:
    """The use of this machine since the last reading.

    folder: a folder on the disk that is measured.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._samples: dict[str, list[float]] = {}
        self._latest: Mapping[str, float] = {}
        self._latest_at = 0.0
        self._processor = answered(psutil.cpu_times)
        self._network = answered(psutil.net_io_counters)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, name="machine", daemon=True)

    def start(self) -> None:
        """Starts the thread that takes samples."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; does not wait, since a device may be keeping it."""
        self._ended.set()

    def read(self) -> dict[str, float]:
        """Returns the figures since the last reading: means, and the network's traffic in megabytes.

        If no sample was taken since then, the latest one is repeated, unless it is older than `STALE_SECONDS`.
        """
        processor = answered(psutil.cpu_times)
        network = answered(psutil.net_io_counters)
        with self._lock:
            samples = self._samples
            self._samples = {}
            before = self._processor
            self._processor = processor
            sent_before = self._network
            self._network = network
            latest = self._latest if time.monotonic() - self._latest_at <= STALE_SECONDS else {}
        figures = {**latest, **{name: sum(values) / len(values) for name, values in samples.items()}}
        if processor is not None and before is not None:
            figures["cpu_utilization_percentage"] = busy_percentage(before, processor)
        if network is not None and sent_before is not None:
            figures["network_receive_megabytes"] = (network.bytes_recv - sent_before.bytes_recv) / MEGABYTE
            figures["network_transmit_megabytes"] = (network.bytes_sent - sent_before.bytes_sent) / MEGABYTE
        return {f"system/{name}": value for name, value in figures.items()}

    def _sample_until_ended(self) -> None:
        gpus = Gpus()
        while not self._ended.is_set():
            self._add({**self._memory(), **self._disk(), **gpus.figures()})
            self._ended.wait(SAMPLE_SECONDS)

    def _add(self, figures: Mapping[str, float]) -> None:
        with self._lock:
            self._latest = figures
            self._latest_at = time.monotonic()
            for name, value in figures.items():
                self._samples.setdefault(name, []).append(value)

    def _memory(self) -> dict[str, float]:
        memory = answered(psutil.virtual_memory)
        if memory is None:
            return {}
        return {
            "system_memory_usage_megabytes": (memory.total - memory.available) / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
        }

    def _disk(self) -> dict[str, float]:
        disk = answered(lambda: psutil.disk_usage(str(self._folder)))
        if disk is None:
            return {}
        return {
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_usage_percentage": disk.percent,
            "disk_available_megabytes": disk.free / MEGABYTE,
        }


def answered(ask: Callable[[], Any]) -> Any:
    """Returns the operating system's answer; None if there is none, for example from a network file system that is away."""
    with suppress(OSError, psutil.Error):
        return ask()
    return None


def busy_percentage(before: Any, after: Any) -> float:
    """Returns how busy all processors were between two readings of their times, in percent."""
    idle = sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("idle", "iowait"))
    # Times of guests are also part of the times of users.
    total = sum(now - then for now, then in zip(after, before, strict=True))
    total -= sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("guest", "guest_nice"))
    return max(0.0, min(100.0, 100.0 * (1.0 - idle / total))) if total > 0 else 0.0
