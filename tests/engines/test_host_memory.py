"""Freed memory serves a process's next tensors until it is given back; measured in a separate process."""

import subprocess
import sys
from pathlib import Path

import pytest

PAGES = 10 * (96 << 20) // 4096
"""Pages in ten times 96 MiB."""

TRIES = """
import resource, sys
import psutil, torch
from yatt_core.engines.host_memory import give_back_freed_memory, keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = lambda: psutil.Process().memory_info().rss
work = lambda: [torch.ones(48 << 18) for _ in range(2)] and None
for _ in range(5):
    work()
before = faults()
for _ in range(10):
    work()
print(faults() - before)
full = held()
give_back_freed_memory()
print(full - held())
"""


@pytest.fixture(scope="module", params=["kept", "not"])
def outcome(request):
    """Returns whether memory is kept, the page faults of ten times 96 MiB, and the bytes given back."""
    found = subprocess.run(
        [sys.executable, "-c", TRIES, request.param], capture_output=True, text=True, check=True, timeout=120
    )
    faults, given_back = map(int, found.stdout.split())
    return request.param == "kept", faults, given_back


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
def test_freed_tensors_serve_the_next(outcome):
    kept, faults, _ = outcome
    # Pages have 4 KiB, or 2 MiB if the kernel always gives out large ones. A kept block may be a few bytes too small
    # for the next tensor of the same size, until its neighbours are free too.
    assert faults < PAGES / 3 if kept else faults > 400


LARGE = """
from pathlib import Path
import numpy as np
import psutil
from yatt_core.engines.host_memory import large_pages
def private():
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared
found, before = np.frombuffer(large_pages(96 << 20), np.uint8), private()
found.fill(1)
print(private() - before)
place, inside = found.ctypes.data, False
for line in Path("/proc/self/smaps").read_text().splitlines():
    first = line.split()[0]
    if "-" in first:
        start, end = (int(each, 16) for each in first.split("-"))
        inside = start <= place < end
    elif inside and first == "VmFlags:":
        print("hg" in line.split())
"""
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HUGE.exists(), reason="only Linux has such pages")
def test_memory_of_large_pages_is_private_and_asks_the_kernel_for_them():
    found = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=120)
    grown, asks = found.stdout.split()
    assert abs(int(grown) - (96 << 20)) < 4 << 20
    assert asks == "True"


def test_freed_memory_is_given_back(outcome):
    kept, _, given_back = outcome
    assert not kept or given_back > 90 << 20
