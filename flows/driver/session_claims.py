"""Handing an opened session to its flow, and how every way to leave a session ends in a recorded state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from db.core.errors import Fenced
from flows.driver.session import DriverSession
from flows.driver.stopping import graceful_signals
from yatt_core.errors import FencedError, YattError

log = logging.getLogger("yatt_core.flow")
_offered: dict[str, DriverSession] = {}


@contextmanager
def ended_on_error(session: DriverSession) -> Iterator[None]:
    """Ends the session, with the run's state recorded, when what stands inside raises."""
    try:
        yield
    except (Fenced, FencedError) as error:
        # Nobody may have taken over: then this is the last word on the run, else it is refused.
        session.failure = FencedError(f"run {session.context.run}: {error}")
        session.end_early("fenced", "failed", str(error))
        raise session.failure from error
    except YattError as error:
        session.failure = error
        session.end_early("failed", "failed", str(error))
        raise
    except Exception as error:
        log.exception("unforeseen")
        session.failure = error
        session.end_early("failed", "failed", f"unexpected {type(error).__name__}: {error}")
        raise
    except BaseException as error:
        session.failure = error
        session.end_early("interrupted", "stopped", "interrupted")
        raise


@contextmanager
def offered(session: DriverSession) -> Iterator[None]:
    """Leaves an opened session for the flow of the same run in this process to claim.

    Where the flow fails before it claims it, the session is ended here.
    """
    _offered[session.context.run] = session
    try:
        yield
    except BaseException:
        if _offered.pop(session.context.run, None) is None:
            raise
        with ended_on_error(session):
            raise


@contextmanager
def claimed_session(run: str) -> Iterator[DriverSession]:
    """The opened session of a run; however the flow ends, the run is left in a recorded state."""
    session = _offered.pop(run)
    grace = session.context.spec.recovery.stop_grace_seconds
    with graceful_signals(session.stops, grace, session.context.observer.stage), ended_on_error(session):
        yield session
    session.end("ended")
