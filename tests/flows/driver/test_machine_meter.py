"""The use of the driver's machine between two readings."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from flows.driver.machine_meter import MachineMeter, busy_percentage
from yatt_core.spec.sections.metric_names import is_timing

Times = namedtuple("Times", "user system idle iowait guest")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Times(1.0, 0.0, 3.0, 0.0, 0.0), 25.0),
        (Times(1.0, 1.0, 1.0, 1.0, 0.0), 50.0),
        (Times(2.0, 0.0, 2.0, 0.0, 2.0), 50.0),
        (Times(0.0, 0.0, 0.0, 0.0, 0.0), 0.0),
    ],
    ids=["busy", "waiting for disks is idle", "a guest's time counts once", "no time"],
)
def test_how_busy_the_processors_were(after: Times, expected: float) -> None:
    assert busy_percentage(Times(0.0, 0.0, 0.0, 0.0, 0.0), after) == expected


def test_a_reading_begins_the_next_one(tmp_path: Path) -> None:
    meter = MachineMeter(tmp_path)
    meter.sample()
    first, second = meter.read(), meter.read()
    assert first.keys() == second.keys() >= {"system/cpu_utilization_percentage", "system/disk_usage_percentage"}
    assert all(is_timing(name) for name in first)
    assert 0.0 < first["system/system_memory_usage_percentage"] < 100.0
    assert second["system/network_receive_megabytes"] >= 0.0
