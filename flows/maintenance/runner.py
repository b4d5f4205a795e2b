"""Runs the steps of maintenance one after the other; a step that fails does not keep the others from running.

Consumes steps; produces a result, which is recorded in the home. Only one process at a time maintains a home.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from db.core.errors import LedgerError
from flows.maintenance.record import MaintenanceResult, StepResult, add_result
from flows.run.home import Home
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.file_lock import file_lock
from yatt_core.logs import redact

log = logging.getLogger("yatt.maintenance")
LOCK = ".maintenance.lock"


class MaintenanceError(Exception):
    """Something is wrong that a step has found; its text says what and where."""


Step = Callable[[], str]
"""Returns what it has done, or raises `MaintenanceError`, `YattError` or `LedgerError`."""


def maintain(home: Home, steps: Mapping[str, Step], by: str) -> MaintenanceResult:
    """Runs the steps and records the result.

    by: who started them.

    Raises `InfrastructureError` if another process maintains the home.
    """
    with file_lock(home.folder / LOCK) as alone:
        if not alone:
            raise InfrastructureError(f"{home.folder}: another process maintains this home; try again once it is done")
        began = time.time()
        results = tuple(_done(name, step) for name, step in steps.items())
        result = MaintenanceResult(began, time.time(), by, results)
        add_result(home, result)
    return result


def _done(name: str, step: Step) -> StepResult:
    began = time.monotonic()
    try:
        ok = True
        said = step()
    except (MaintenanceError, YattError, LedgerError, OSError) as error:
        ok = False
        said = redact(str(error))
    log.log(logging.INFO if ok else logging.WARNING, "%s: %s", name, said)
    return StepResult(name, ok, said, round(time.monotonic() - began, 3))
