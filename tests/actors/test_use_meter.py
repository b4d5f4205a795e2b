"""How busy a device was: processor time of a process and its children, or the samples of a GPU's driver."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import psutil
import pytest

from tests.waiting import wait_until
from yatt_core.actors import use_meter
from yatt_core.actors.use_meter import UseMeter
from yatt_core.cluster.gpus import NVML, Gpus

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"


def test_work_of_the_process_and_of_its_children_counts() -> None:
    meter = UseMeter()
    time.sleep(0.3)
    idle = meter.read()
    child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE)
    try:
        began = time.monotonic()
        wait_until(lambda: sum(psutil.Process(child.pid).cpu_times()[:2]) >= 0.3, 60)
        busy = meter.read()
        took = time.monotonic() - began
    finally:
        child.communicate(b"\n", timeout=60)
    assert idle is not None and busy is not None
    assert busy >= 100.0 * 0.3 / (took + 0.5) > 0.0 and idle >= 0.0


ALONE = """
import psutil
from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.use_meter import UseMeter

def refused(*arguments, **options):
    raise AssertionError("all processes of the machine are read")

psutil.Process.children = refused
meter = UseMeter()
assert meter.read() >= 0.0 and own_holdings().host_bytes > 0
"""


def test_a_process_without_children_does_not_look_for_them_among_all_others() -> None:
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


class Driver(ModuleType):
    """Stands in for nvidia-ml-py: three GPUs, of which the last does not tell its use."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__(NVML)
        self.__spec__ = ModuleSpec(NVML, None)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUtilizationRates(self, number: int) -> object:
        if number == 2:
            raise self.NVMLError
        return type("Rates", (), {"gpu": 20 * (number + 1)})


def test_an_actors_own_gpus_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gpus([0]).utilization() is None, "without nvidia-ml-py nothing is known"
    monkeypatch.setitem(sys.modules, NVML, Driver())
    assert [Gpus(numbers).utilization() for numbers in ([1], [0, 1], [1, 2], [2], None)] == [40, 30, 40, None, 30]
    monkeypatch.setattr(use_meter, "own_gpus", lambda: ["1"])
    monkeypatch.setattr(use_meter, "SAMPLE_SECONDS", 0.01)
    meter = UseMeter()
    while (use := meter.read()) is None:
        time.sleep(0.01)
    assert use == 40.0
