"""A disk that is full at any step: `StorageFullError`, nothing half-made left, and work resumes once there is space."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.storage_scenarios import SCENARIOS, StorageScenario
from yatt_core.errors import StorageFullError

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def refusing(step: int, error: int) -> Iterator[list[int]]:
    """Makes the disk refuse every step from the given one on; yields a list with the number of steps so far.

    A step is a write, a sync, a rename or a new folder.
    """
    taken = [0]

    def counted(real: Callable[..., Any], writes: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
        def stepping(*arguments: Any, **keywords: Any) -> Any:
            if writes(*arguments, **keywords):
                taken[0] += 1
                if taken[0] >= step:
                    raise OSError(error, os.strerror(error))
            return real(*arguments, **keywords)

        return stepping

    def for_writing(_: Path, mode: str = "r", *__: Any, **___: Any) -> bool:
        return "w" in mode

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(os, "fsync", counted(os.fsync)))
        stack.enter_context(mock.patch.object(Path, "open", counted(Path.open, for_writing)))
        for name in ("rename", "mkdir"):
            stack.enter_context(mock.patch.object(Path, name, counted(getattr(Path, name))))
        yield taken


@pytest.mark.parametrize(
    "error", [pytest.param(errno.ENOSPC, id="full"), pytest.param(errno.EDQUOT, id="quota", marks=pytest.mark.verify)]
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_disk_that_is_full_from_any_step_on(tmp_path: Path, scenario: StorageScenario, error: int) -> None:
    step = 0
    refused = True
    while refused:
        step += 1
        folder = tmp_path / str(step)
        folder.mkdir()
        told: list[str] = []
        with refusing(step, error) as taken:
            try:
                scenario.run(folder, told.append)
            except StorageFullError:
                assert [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".partial"))] == []
            else:
                refused = False
        scenario.check(folder, tuple(told))
    assert step > 5
    assert taken[0] == step - 1, "only a scenario that met no refusal may end without an error"


def test_a_real_file_system_without_room(tmp_path: Path) -> None:
    mounting = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" -m tests.full_disk "$1"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounting, "sh", str(tmp_path), sys.executable]
    try:
        probe = subprocess.run([*command[:4], "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare on this machine")
    if probe.returncode:
        pytest.skip(f"no file system can be mounted here: {probe.stderr.decode().strip()}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
