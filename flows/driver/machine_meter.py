"""Measures how much of the driver's machine is in use, in the units and under the names that trackers expect.

Consumes the counters of the operating system and, if nvidia-ml-py is installed, of the GPUs' driver. Produces metrics of
class timing: processor and network figures from counters, which cover the whole time since the last reading; memory, disk
and GPU figures from samples, one for each renewal of the lease and one for each reading.
"""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import psutil

MEGABYTE = 1e6
NVML = "pynvml"
"""The module of nvidia-ml-py."""


class MachineMeter:
    """The use of this machine since the last reading; safe to call from several threads.

    folder: a folder on the disk that is measured.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._gpus = Gpus() if find_spec(NVML) else None
        self._samples: dict[str, list[float]] = {}
        self._processor, self._network = psutil.cpu_times(), psutil.net_io_counters()

    def sample(self) -> None:
        """Adds a sample of the figures that have no counters."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._folder))
        figures = {
            "system_memory_usage_megabytes": (memory.total - memory.available) / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_usage_percentage": disk.percent,
            "disk_available_megabytes": disk.free / MEGABYTE,
            **(self._gpus.figures() if self._gpus else {}),
        }
        with self._lock:
            for name, value in figures.items():
                self._samples.setdefault(name, []).append(value)

    def read(self) -> dict[str, float]:
        """Returns the figures since the last reading: means, and the network's traffic in megabytes."""
        self.sample()
        processor, network = psutil.cpu_times(), psutil.net_io_counters()
        with self._lock:
            samples, self._samples = self._samples, {}
            before, self._processor = self._processor, processor
            sent_before, self._network = self._network, network
        figures = {name: sum(values) / len(values) for name, values in samples.items()}
        figures["cpu_utilization_percentage"] = busy_percentage(before, processor)
        if network is not None and sent_before is not None:
            figures["network_receive_megabytes"] = (network.bytes_recv - sent_before.bytes_recv) / MEGABYTE
            figures["network_transmit_megabytes"] = (network.bytes_sent - sent_before.bytes_sent) / MEGABYTE
        return {f"system/{name}": value for name, value in figures.items()}


def busy_percentage(before: Any, after: Any) -> float:
    """Returns how busy all processors were between two readings of their times, in percent."""
    idle = sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("idle", "iowait"))
    # Times of guests are also part of the times of users.
    total = sum(now - then for now, then in zip(after, before, strict=True))
    total -= sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("guest", "guest_nice"))
    return max(0.0, min(100.0, 100.0 * (1.0 - idle / total))) if total > 0 else 0.0


class Gpus:
    """The GPUs of this machine; none if their driver does not answer."""

    def __init__(self) -> None:
        self._nvml = nvml = cast(Any, import_module(NVML))
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:
            self._handles = []

    def figures(self) -> dict[str, float]:
        """Returns utilization, memory and power of each GPU; a figure that its driver does not give is left out."""
        figures: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            for read in (self._memory, self._utilization, self._power):
                try:
                    figures |= {f"gpu_{index}_{name}": value for name, value in read(handle).items()}
                except self._nvml.NVMLError:
                    continue
        return figures

    def _memory(self, handle: Any) -> dict[str, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        share = 100.0 * memory.used / memory.total
        return {"memory_usage_megabytes": memory.used / MEGABYTE, "memory_usage_percentage": share}

    def _utilization(self, handle: Any) -> dict[str, float]:
        return {"utilization_percentage": float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)}

    def _power(self, handle: Any) -> dict[str, float]:
        return {"power_usage_watts": self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0}
