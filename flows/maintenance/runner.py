"""Runs the steps of maintenance one after the other; a step that fails does not keep the others from running.

Consumes steps; produces a result, which is recorded in the home. Only one process at a time, on whatever host, maintains a home:
the one that has its lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from db.core.errors import LeaseHeld, LedgerError, LedgerUnavailable
from db.core.subjects import HOME, subject_of
from db.ledger import Ledger
from flows.maintenance.record import MaintenanceResult, StepResult, add_result
from flows.run.home import Home
from flows.run.lease import LIFE_SECONDS, held
from yatt_core.errors import FencedError, InfrastructureError, YattError
from yatt_core.logs import redact

log = logging.getLogger("yatt.maintenance")


class MaintenanceError(Exception):
    """Something is wrong that a step has found; its text says what and where."""


Step = Callable[[], str]
"""Returns what it has done, or raises `MaintenanceError`, `YattError` or `LedgerError`."""


def maintain(home: Home, steps: Mapping[str, Step], by: str) -> MaintenanceResult:
    """Runs the steps and records the result.

    by: who started them.

    Raises `InfrastructureError` if another process maintains the home, `FencedError` if one has taken over meanwhile, and
    `LedgerError` if the ledger cannot be opened; what was done until then is recorded, and why it ended.
    """
    began = time.time()
    results = list[StepResult]()
    try:
        with ExitStack() as stack:
            ledger = stack.enter_context(Ledger.open(home.ledger, migrate=False))
            lease = stack.enter_context(held(ledger, subject_of(HOME), "yatt maintenance", life_seconds=LIFE_SECONDS))
            for name, step in steps.items():
                with suppress(LedgerUnavailable):  # the step says so
                    lease.check()
                results.append(_done(name, step))
    except LeaseHeld as error:
        raise InfrastructureError(
            f"{home.folder}: another process maintains this home, {error.holder}; try again once it is done"
        ) from error
    except (FencedError, LedgerError) as error:
        results.append(StepResult("the home's lease", False, redact(str(error)), 0.0))
        add_result(home, MaintenanceResult(began, time.time(), by, tuple(results)))
        raise
    result = MaintenanceResult(began, time.time(), by, tuple(results))
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
