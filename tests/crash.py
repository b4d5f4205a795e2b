"""Runs a scenario in a child process that dies, without a word, right after its n-th durable step.

A step is an fsync, a rename, a new folder or a deletion. The child tells what was acknowledged through a file descriptor, as
a caller would see it return. Nothing of the product knows of this.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED, DONE = 9, 0
Scenario = Callable[[Path, Callable[[str], None]], None]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["pytest", "tests.checkpoints.scenarios", "tests.data.scenarios", "tests.data.example_specs"]
)


def run_until(scenario: Scenario, folder: Path, step: int) -> tuple[bool, list[str]]:
    """Runs the scenario up to its step; tells whether it was killed, and what it had acknowledged."""
    acknowledged = folder.parent / f"{folder.name}.acknowledged"
    acknowledged.write_bytes(b"")
    child = _context.Process(target=_child, args=(scenario, folder, acknowledged, step))
    child.start()
    child.join()
    assert child.exitcode in (KILLED, DONE), child.exitcode
    return child.exitcode == KILLED, acknowledged.read_text().split()


def _child(scenario: Scenario, folder: Path, acknowledged: Path, step: int) -> None:
    descriptor = os.open(acknowledged, os.O_WRONLY | os.O_APPEND)
    taken = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **keywords: Any) -> Any:
            nonlocal taken
            result = real(*arguments, **keywords)
            taken += 1
            if taken == step:
                os._exit(KILLED)
            return result

        return stepping

    os.fsync = counted(os.fsync)
    for name in ("rename", "mkdir", "unlink"):
        setattr(Path, name, counted(getattr(Path, name)))
    scenario(folder, lambda word: os.write(descriptor, f"{word}\n".encode()))
    os._exit(DONE)
