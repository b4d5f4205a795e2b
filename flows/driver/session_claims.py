"""Hands an opened session over to its flow, and leaves the run in a recorded state however the session ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from db.core.errors import Fenced
from db.write.lease import ENDED
from flows.driver.session import DriverSession
from flows.driver.stopping import STOP_REQUESTED, StartInterrupted, graceful_signals
from yatt_core.errors import FencedError, YattError

log = logging.getLogger("yatt_core.flow")
_offered: dict[str, DriverSession] = {}


@contextmanager
def ended_on_error(session: DriverSession) -> Iterator[None]:
    """Ends the session and records the run's state if the body raises."""
    try:
        yield
    except (Fenced, FencedError) as error:
        # Otherwise the run's state would stay "running". If another driver has taken over, the ledger refuses this.
        session.failure = FencedError(f"run {session.context.run}: {error}")
        session.end_early("fenced", "failed", str(error))
        raise session.failure from error
    except YattError as error:
        session.failure = error
        session.end_early("failed", "failed", str(error))
        raise
    except Exception as error:
        log.exception("unexpected error")
        session.failure = error
        session.end_early("failed", "failed", f"unexpected {type(error).__name__}: {error}")
        raise
    except StartInterrupted as error:
        session.failure = error
        session.end_early(ENDED, "stopped", STOP_REQUESTED)
        raise
    except BaseException as error:
        session.failure = error
        session.end_early("interrupted", "stopped", "interrupted")
        raise


@contextmanager
def offered(session: DriverSession) -> Iterator[None]:
    """Offers an opened session to the flow of the same run in this process, for the duration of the body."""
    _offered[session.context.run] = session
    try:
        yield
    finally:
        _offered.pop(session.context.run, None)


@contextmanager
def ended_unless_claimed(session: DriverSession) -> Iterator[None]:
    """Ends the session if the body fails before the flow has claimed it; a flow ends a session that it has claimed."""
    try:
        yield
    except BaseException:
        if session.claimed:
            raise
        with ended_on_error(session):
            raise


@contextmanager
def claimed_session(run: str) -> Iterator[DriverSession]:
    """Yields the opened session of a run and ends it; however the flow ends, the run is left in a recorded state."""
    session = _offered.pop(run)
    session.claimed = True
    grace = session.context.spec.recovery.stop_grace_seconds
    with graceful_signals(session.stops, grace, session.context.observer.stage):
        with ended_on_error(session):
            yield session
        session.end(ENDED)
