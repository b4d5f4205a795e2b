"""Runs a scenario in a child process that dies without cleanup right after its n-th durable step.

A step is an fsync, a rename, a new folder, a deletion, a database's commit, or an answer from an object store. The
child reports what was acknowledged through a file descriptor, when a caller would see it return. The product contains
no hook for this.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiobotocore.client import AioBaseClient
from sqlalchemy.engine.default import DefaultDialect

KILLED, DONE = 9, 0
Scenario = Callable[[Path, Callable[[str], None]], None]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "pytest",
        "tests.checkpoints.scenarios",
        "tests.experience.scenarios",
        "tests.flows.run.scenarios",
        "tests.inputs.example_specs",
        "tests.object_store.scenarios",
    ]
)


def run_until(scenario: Scenario, folder: Path, step: int) -> tuple[bool, list[str]]:
    """Runs the scenario up to a step; returns whether it was killed, and what it had acknowledged."""
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

    def count() -> None:
        nonlocal taken
        taken += 1
        if taken == step:
            os._exit(KILLED)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **keywords: Any) -> Any:
            result = real(*arguments, **keywords)
            count()
            return result

        return stepping

    def answered(real: Callable[..., Any]) -> Callable[..., Any]:
        async def stepping(*arguments: Any, **keywords: Any) -> Any:
            result = await real(*arguments, **keywords)
            count()
            return result

        return stepping

    os.fsync = counted(os.fsync)
    for name in ("unlink", "rmdir"):  # by which shutil.rmtree deletes, too
        setattr(os, name, counted(getattr(os, name)))
    for name in ("rename", "mkdir"):
        setattr(Path, name, counted(getattr(Path, name)))
    DefaultDialect.do_commit = counted(DefaultDialect.do_commit)
    AioBaseClient._make_api_call = answered(AioBaseClient._make_api_call)
    scenario(folder, lambda word: os.write(descriptor, f"{word}\n".encode()))
    os._exit(DONE)
