"""Repeats the start of a session after failures of its services, within the budget for infrastructure.

Consumes one step that starts services and the flow. A service may be killed, or be on its way up again, at any
moment of a start; each failed attempt is recorded in the audit chain with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from db.core.errors import LedgerUnavailable
from flows.driver.outages import START
from flows.driver.session import DriverSession
from yatt_core.errors import AwayError, InfrastructureError, StorageFullError
from yatt_core.logs import redact

START_FAILED = "start_failed"
"""Kind of the event that records a failed attempt."""

PAUSE_SECONDS = 2.0
"""Pause after the first failure, for a service that is on its way up; later ones are longer."""

log = logging.getLogger("yatt_core.flow")
R = TypeVar("R")


def with_retries(session: DriverSession, start: Callable[[], R]) -> R:
    """Returns what `start` returns; repeats it after an `InfrastructureError` that precedes the training loop.

    What is away is waited for, at no cost to the budget.

    Raises the last error once the budget is exhausted, and errors of the training loop, which has budgets of its own.
    """
    context = session.context
    allowed = context.spec.recovery.budgets.infrastructure
    attempt = 0
    while True:
        attempt += 1
        session.threads.check()
        try:
            return start()
        except StorageFullError:
            raise
        except AwayError as error:
            if session.claimed or session.stops.asked or not session.outages.wait(error, START):
                raise
            attempt -= 1
        except InfrastructureError as error:
            if session.claimed:
                raise
            reason = redact(str(error))
            body = {"attempt": attempt, "term": context.fence.term, "reason": reason}
            try:
                context.ledger.events.append(context.run, START_FAILED, body, context.fence)
            except LedgerUnavailable as lost:
                log.error("the failed start could not be recorded: %s", lost)
            if attempt >= allowed:
                raise
            context.clock.sleep(PAUSE_SECONDS * attempt)
            context.observer.warned(f"the start of the session failed, retrying: {reason}")
