"""Failpoints of the driver: ledger, files, calls of the run's actors, tracker, and steps of a session's start and end.

`watch` wraps the product's imported modules in this process. A name here that the product no longer has is an error, so
that the table stays up to date.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.recovery.failpoints import PRODUCT, Failpoints, around, name_of, watch_files

CONTROL = {
    "flows.launch": ("open_session",),
    "flows.driver.services.SessionServices": ("connect",),
    "flows.phases.recovery": ("restore_newest", "replay"),
    "flows.driver.actors_start.ActorsStart": ("begin", "ready", "make_ready", "end"),
    "flows.driver.threads.DriverThreads": ("start",),
    "yatt_core.run_actors.wave_collection.WaveCollection": ("receipts",),
    "flows.driver.session.DriverSession": ("book", "close", "end"),
    "ops.integrations.mlflow_tracker.MlflowTracker": ("deliver", "_create_run", "_send_points"),
}
BELOW = ("db.core.engine", "contextlib")


def watch(failpoints: Failpoints) -> None:
    """Adds all failpoints to this process."""
    reach = failpoints.in_driver
    watch_files(reach)
    watch_ledger(reach)
    _watch_commits(reach)
    actors = _find("yatt_core.run_actors.run_actors.RunActors")
    for name, member in vars(actors).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            around(reach, actors, name)
    for owner, names in CONTROL.items():
        for name in names:
            around(reach, _find(owner), name)


def watch_ledger(reach: Callable[[str], None]) -> None:
    """Adds places before and after each COMMIT, named by the function of `db` that makes the transaction."""
    database = _find("db.core.engine.Database")
    real = database.write

    @contextmanager
    def write(self: Any, synced: bool = True) -> Iterator[Any]:
        name = _ledger_function()
        with real(self, synced) as connection:
            yield connection
            reach(f"before COMMIT of {name}")
        reach(f"after COMMIT of {name}")

    database.write = write


def _watch_commits(reach: Callable[[str], None]) -> None:
    """Adds a place after each iteration's commit, so that some are between two checkpoints."""
    commits = _find("db.write.commit.Commits")
    real = commits.commit

    def commit(self: Any, fence: Any, row: Any) -> None:
        real(self, fence, row)
        reach(f"after the commit of iteration {row.iteration}")

    commits.commit = commit


def _ledger_function() -> str:
    frame: Any = sys._getframe(2)
    while frame.f_globals["__name__"] in BELOW or not frame.f_code.co_filename.startswith(PRODUCT):
        frame = frame.f_back
    return name_of(frame)


def _find(dotted: str) -> Any:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        module, _, name = dotted.rpartition(".")
        return getattr(importlib.import_module(module), name)
