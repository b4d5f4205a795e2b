"""This machine's GPUs as their driver reports them: names, memory, use. Does not import Ray, since plans use it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 10.0
MIB = 1 << 20
MEGABYTE = 1e6
NVML = "pynvml"
"""The module of nvidia-ml-py."""


def local_gpus() -> list[tuple[str, int]]:
    """Returns names and bytes of memory of the local GPUs; empty if there are none or their driver does not answer."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [(name.strip(), int(memory) * MIB) for name, memory in rows if memory.strip().isdigit()]


class Gpus:
    """GPUs of this machine; none if their driver does not answer or nvidia-ml-py is not installed.

    numbers: their numbers as their driver counts them; None for all.
    """

    def __init__(self, numbers: Sequence[int] | None = None) -> None:
        self._handles: dict[int, Any] = {}
        if find_spec(NVML) is None:
            return
        self._nvml = nvml = cast(Any, import_module(NVML))
        with suppress(nvml.NVMLError):
            nvml.nvmlInit()
            chosen = range(nvml.nvmlDeviceGetCount()) if numbers is None else numbers
            self._handles = {number: nvml.nvmlDeviceGetHandleByIndex(number) for number in chosen}

    def utilization(self) -> float | None:
        """Returns how busy the GPUs are now, in percent; None if their driver does not tell."""
        found = []
        for handle in self._handles.values():
            with suppress(self._nvml.NVMLError):
                found.append(self._utilization(handle)["utilization_percentage"])
        return sum(found) / len(found) if found else None

    def figures(self) -> dict[str, float]:
        """Returns utilization, memory and power of each GPU; a figure that its driver does not give is left out."""
        figures: dict[str, float] = {}
        for index, handle in self._handles.items():
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
