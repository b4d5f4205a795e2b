"""What a run's processes use, as metrics of class timing: how busy devices are, and memory by process. Pure but for psutil.

Consumes the answers of the actors; produces gauges for a commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import psutil

from yatt_core.actors.use_meter import ProcessUse
from yatt_core.cluster.gpus import MEGABYTE
from yatt_core.guards.memory import DEVICE, DRIVER, HOST, memory_metric
from yatt_core.spec.sections.metric_names import LEAST_BUSY


def process_gauges(used: Mapping[str, ProcessUse]) -> dict[str, float]:
    """Returns the gauges of actors, by their names, and of the driver's process.

    The least busy device is the one with the smallest sum over the actors with its number: an instance and a rank that
    take turns on a device are busy one after the other.
    """
    gauges = {memory_metric(DRIVER, HOST): _driver_megabytes()}
    by_device: dict[str, float] = defaultdict(float)
    for name, use in used.items():
        gauges[memory_metric(name, HOST)] = use.holds.host_bytes / MEGABYTE
        if use.holds.gpu_bytes:
            gauges[memory_metric(name, DEVICE)] = use.holds.gpu_bytes / MEGABYTE
        if use.utilization is not None:
            gauges[f"devices/{name}/utilization_percentage"] = use.utilization
            by_device[name.rpartition("-")[2]] += use.utilization
    if by_device:
        gauges[LEAST_BUSY] = min(100.0, *by_device.values())
    return gauges


def _driver_megabytes() -> float:
    memory = psutil.Process().memory_info()
    return float(memory.rss - memory.shared) / MEGABYTE
