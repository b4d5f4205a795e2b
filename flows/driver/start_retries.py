"""Repeats the start of a session after failures of its services, within the budgets of `recovery.budgets`.

Consumes one step that starts services and the flow. A service may be killed, or be on its way up again, at any
moment of a start; each failed attempt is recorded in the audit chain with its reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from db.core.errors import LedgerUnavailable
from db.write.lease import ENDED
from flows.driver.context import RunContext
from flows.driver.outages import START
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from yatt_core.errors import AwayError, FailureClass, InfrastructureError, StorageFullError
from yatt_core.logs import redact

START_FAILED = "start_failed"
"""Kind of the event that records a failed attempt."""

PAUSE_SECONDS = 2.0
"""Pause after the first failure, for a service that is on its way up; later ones are longer."""

log = logging.getLogger("yatt_core.flow")


def with_retries(session: DriverSession, start: Callable[[], SessionOutcome]) -> SessionOutcome:
    """Returns what `start` returns; repeats it after an `InfrastructureError` that precedes the training loop.

    What is away is waited for, at no cost to the budget. If it stays away for too long, the run is paused, and if the session
    is asked to stop meanwhile, it is stopped.

    Raises the last error once the budget is exhausted, and errors of the training loop, which has budgets of its own.
    """
    context = session.context
    budgets = context.spec.recovery.budgets
    attempts: Counter[FailureClass] = Counter()
    silence: LedgerUnavailable | None = None
    while True:
        if silence is not None:
            session.ledger_outage.wait(silence)
            silence = None
        try:
            if (ending := session.outages.wait()) is not None:
                outcome = session.conclude(ending)
                session.end(ENDED)
                return outcome
            session.threads.check()
            return start()
        except StorageFullError:
            raise
        except AwayError as error:
            if session.claimed:
                raise
            session.outages.found(error, START)
        except LedgerUnavailable as error:
            if session.claimed:
                raise
            silence = error
        except InfrastructureError as error:
            if session.claimed:
                raise
            attempts[error.failure_class] += 1
            _record(context, attempts.total(), error)
            if attempts[error.failure_class] >= budgets.attempts(error.failure_class):
                raise
            context.clock.sleep(PAUSE_SECONDS * attempts.total())
            context.observer.warned(f"the start of the session failed, retrying: {redact(str(error))}")


def _record(context: RunContext, attempt: int, error: InfrastructureError) -> None:
    body = {"attempt": attempt, "term": context.fence.term, "reason": redact(str(error))}
    try:
        context.ledger.events.append(context.run, START_FAILED, body, context.fence)
    except LedgerUnavailable as lost:
        log.error("the failed start could not be recorded: %s", lost)
