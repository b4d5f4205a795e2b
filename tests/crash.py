"""Runs a scenario in a child process that dies without cleanup right after its n-th durable step.

A step is an fsync, a rename, a new folder, a deletion, a database's commit, or an answer from an object store. The
child reports what was acknowledged through a file descriptor, when a caller would see it return. The product contains
no hook for this.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiobotocore.client import AioBaseClient
from sqlalchemy.engine.default import DefaultDialect

KILLED = 9
DONE = 0
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


class Death(NamedTuple):
    """A scenario that was killed after a step; the last one survives, since it has no further step.

    prepared: what the preparation returned.
    """

    step: int
    folder: Path
    acknowledged: list[str]
    prepared: Any


def deaths(scenario: Scenario, within: Path, prepare: Callable[[Path], Any] = lambda _: None) -> Iterator[Death]:
    """Yields a scenario killed after its first step, then after its second, and so on until it survives.

    prepare: called with each new folder before the scenario runs in it.
    """
    for step in itertools.count(1):
        folder = within / f"step-{step}"
        folder.mkdir()
        prepared = prepare(folder)
        killed, acknowledged = run_until(scenario, folder, step)
        yield Death(step, folder, acknowledged, prepared)
        if not killed:
            return


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
