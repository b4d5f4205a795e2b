"""Handing an opened segment to its flow, and how every way to leave a segment ends in a recorded state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from db.errors import Fenced
from flows.segment import Segment
from flows.stopping import graceful_signals
from yatt_core.errors import FencedError, YattError

log = logging.getLogger("yatt_core.flow")
_offered: dict[str, Segment] = {}


@contextmanager
def ended_on_error(segment: Segment) -> Iterator[None]:
    """Ends the segment, with the run's state recorded, when what stands inside raises."""
    try:
        yield
    except (Fenced, FencedError) as error:
        # Nobody may have taken over: then this is the last word on the run, else it is refused.
        segment.failure = FencedError(f"run {segment.run}: {error}")
        segment.end_early("fenced", "failed", str(error))
        raise segment.failure from error
    except YattError as error:
        segment.failure = error
        segment.end_early("failed", "failed", str(error))
        raise
    except Exception as error:
        log.exception("unforeseen")
        segment.failure = error
        segment.end_early("failed", "failed", f"unexpected {type(error).__name__}: {error}")
        raise
    except BaseException as error:
        segment.failure = error
        segment.end_early("interrupted", "stopped", "interrupted")
        raise


@contextmanager
def offered(segment: Segment) -> Iterator[None]:
    """Leaves an opened segment for the flow of the same run in this process to claim.

    Where the flow fails before it claims it, the segment is ended here.
    """
    _offered[segment.run] = segment
    try:
        yield
    except BaseException:
        if _offered.pop(segment.run, None) is None:
            raise
        with ended_on_error(segment):
            raise


@contextmanager
def claimed_segment(run: str) -> Iterator[Segment]:
    """The opened segment of a run; however the flow ends, the run is left in a recorded state."""
    segment = _offered.pop(run)
    grace = segment.spec.recovery.stop_grace_seconds
    with graceful_signals(segment.stops, grace, segment.observer.stage), ended_on_error(segment):
        yield segment
    segment.end("ended")
