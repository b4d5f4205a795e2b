"""A program for `tests/test_full_disk.py`: writes to a real file system with next to no room, given as its argument.

Fills the disk up to a few kilobytes, does a scenario's work until the disk refuses, makes room, and checks that what had been
told is there and that work goes on. Ends with code 0 if all of that holds for every amount of room.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.storage_scenarios import SCENARIOS, Scenario
from yatt_core.checkpoints import publish
from yatt_core.errors import StorageFullError

LEAVE_KILOBYTES = (0, 4, 8, 12, 16, 24, 32)


def attempt(disk: Path, scenario: Scenario, kilobytes: int) -> bool:
    """Runs a scenario with so much room; true if the disk refused."""
    folder, ballast, told = disk / "run", disk / "ballast", []
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
    """Every scenario with every amount of room; each has to be refused with the least."""
    disk = Path(sys.argv[1])
    publish.SPARE_BYTES = 0
    for scenario in SCENARIOS:
        refused = [attempt(disk, scenario, kilobytes) for kilobytes in LEAVE_KILOBYTES]
        assert refused[0], scenario.name


if __name__ == "__main__":
    main()
