"""A program for `tests/test_full_disk.py` that writes to a nearly full file system, whose folder is its argument.

Fills the disk up to a few kilobytes, runs a scenario until the disk refuses, frees space, and checks that everything
acknowledged is there and that work can continue. Exits with code 0 if all of that holds for every amount of free space.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.storage_scenarios import SCENARIOS, StorageScenario
from yatt_core.checkpoints import publish
from yatt_core.errors import StorageFullError

LEAVE_KILOBYTES = (0, 4, 8, 12, 16, 24, 32)


def attempt(disk: Path, scenario: StorageScenario, kilobytes: int) -> bool:
    """Runs a scenario with `kilobytes` of free space; returns whether the disk refused."""
    folder = disk / "run"
    ballast = disk / "ballast"
    told = []
    folder.mkdir()
    room = shutil.disk_usage(disk).free - 1024 * kilobytes
    ballast.write_bytes(bytes(max(0, room)))
    refused = False
    try:
        scenario.run(folder, told.append)
    except StorageFullError:
        refused = True
    left = [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".partial"))]
    assert left == [], left
    ballast.unlink()
    scenario.check(folder, tuple(told))
    shutil.rmtree(folder)
    return refused


def main() -> None:
    """Runs every scenario with every amount of free space; with the smallest amount, the disk must refuse."""
    disk = Path(sys.argv[1])
    publish.SPARE_BYTES = 0
    for scenario in SCENARIOS:
        refused = [attempt(disk, scenario, kilobytes) for kilobytes in LEAVE_KILOBYTES]
        assert refused[0], scenario.name


if __name__ == "__main__":
    main()
