"""The use of the driver's machine between two readings."""

from __future__ import annotations

import errno
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from flows.driver import machine_meter
from flows.driver.machine_meter import MachineMeter, busy_percentage
from tests.waiting import wait_until
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


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[MachineMeter]:
    meter = MachineMeter(tmp_path)
    yield meter
    meter.stop()


def sampled(meter: MachineMeter) -> dict[str, float]:
    """Starts the meter and returns its first reading that has a sample."""
    meter.start()
    wait_until(lambda: "system/system_memory_usage_percentage" in meter.read(), seconds=30.0)
    return meter.read()


def test_a_reading_begins_the_next_one(meter: MachineMeter) -> None:
    first = sampled(meter)
    second = meter.read()
    assert first.keys() == second.keys() >= {"system/cpu_utilization_percentage", "system/disk_usage_percentage"}
    assert all(is_timing(name) for name in first)
    assert 0.0 < first["system/system_memory_usage_percentage"] < 100.0
    assert second["system/network_receive_megabytes"] >= 0.0


def test_what_the_system_does_not_tell_is_left_out(meter: MachineMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> NoReturn:
        raise OSError(errno.ESTALE, "stale file handle")

    for name in ("disk_usage", "net_io_counters"):
        monkeypatch.setattr(psutil, name, away)
    found = sampled(meter).keys()
    assert "system/cpu_utilization_percentage" in found
    assert not [name for name in found if "disk" in name or "network" in name]


def test_a_disk_that_stops_answering_holds_up_no_reading(meter: MachineMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = psutil.disk_usage
    asked_again = threading.Event()
    answer = threading.Event()

    def hanging(_: str) -> NoReturn:
        asked_again.set()
        answer.wait(60)
        raise OSError(errno.EIO, "no answer")

    def once(folder: str) -> object:
        monkeypatch.setattr(psutil, "disk_usage", hanging)
        return measure(folder)

    monkeypatch.setattr(machine_meter, "SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr(psutil, "disk_usage", once)
    meter.start()
    assert asked_again.wait(30)
    sampled = meter.read()
    repeated = meter.read()
    assert sampled["system/disk_usage_percentage"] == repeated["system/disk_usage_percentage"]
    monkeypatch.setattr(machine_meter, "STALE_SECONDS", -1.0)
    assert not [name for name in meter.read() if "disk" in name or "memory" in name], "no stale figures"
    answer.set()
