"""The driver's only way to take values out of Ray: it counts their bytes, bounds the wait, and speaks in our errors.

The driver sees receipts only; the count shows it (`flow_bytes_per_sample`). Waits go in slices, between which the driver may be
interrupted: an exception of a signal's handler within a call of Ray's surfaces wherever it likes, as a `SystemError`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from yatt_core.errors import InfrastructureError, StuckError, YattError

SLICE_SECONDS = 0.5
"""Longest stretch of a wait in which the driver hears of nothing else."""
ANSI_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class BytesMeter:
    """Adds up bytes; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, count: int) -> None:
        """Counts some more bytes."""
        with self._lock:
            self._total += count

    @property
    def total(self) -> int:
        """Bytes so far."""
        with self._lock:
            return self._total


class Interruptions(Protocol):
    """What may end a wait of the driver's."""

    def interrupt(self) -> None:
        """Raises what ends the wait, if anything does."""
        ...

    def shielded(self) -> AbstractContextManager[None]:
        """Inside, no handler of a signal raises anything."""
        ...


class Uninterrupted:
    """Nothing ends a wait but what it waits for, or its time."""

    def interrupt(self) -> None:
        """Raises nothing."""

    def shielded(self) -> AbstractContextManager[None]:
        """No handler is known that would raise."""
        return nullcontext()


UNINTERRUPTED = Uninterrupted()


def _slices(timeout: float, interruptions: Interruptions) -> Iterator[float]:
    """The lengths in seconds of one wait's slices, up to its timeout; raises between them what ends the wait."""
    deadline = time.monotonic() + timeout
    left = timeout
    while left > 0.0 or left == timeout:
        interruptions.interrupt()
        yield max(0.0, min(left, SLICE_SECONDS))
        left = deadline - time.monotonic()


def first_ready(references: Sequence[Any], timeout: float, interruptions: Interruptions = UNINTERRUPTED) -> Any | None:
    """The first of Ray's references, or streams, that has something; none when `timeout` seconds have passed."""
    for seconds in _slices(timeout, interruptions):
        with interruptions.shielded():
            ready, _ = ray.wait(list(references), num_returns=1, timeout=seconds)
        if ready:
            return ready[0]
    return None


def metered_get(
    meter: BytesMeter,
    references: Sequence[Any],
    timeout: float,
    waiting_for: str,
    interruptions: Interruptions = UNINTERRUPTED,
) -> list[Any]:
    """The values of Ray's references, in their order; their serialised bytes are added to the meter.

    waiting_for: what an error names, such as `shard 3 by controller 1`. The first failure is raised at once, not after the
    slowest: see `unwrap_ray_error`. Raises `StuckError` when `timeout` seconds have passed.
    """
    for seconds in _slices(timeout, interruptions):
        try:
            with interruptions.shielded():
                values: list[Any] = ray.get(list(references), timeout=seconds)
            break
        except GetTimeoutError:
            continue
        except RayError as error:
            raise unwrap_ray_error(error, waiting_for) from error
    else:
        raise StuckError(f"{waiting_for}: not finished after {timeout:g} s")
    for value in values:
        meter.add(len(cloudpickle.dumps(value)))
    return values


def unwrap_ray_error(error: RayError, waiting_for: str) -> Exception:
    """What to raise in place of an error of Ray's.

    A `YattError` raised in an actor becomes itself. Any other exception of an actor's code stays as it is, since it carries
    the remote traceback. A dead actor, a lost worker or object becomes an `InfrastructureError` that names `waiting_for`.
    """
    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        while isinstance(cause, RayTaskError):
            cause = getattr(cause, "cause", None)
        return cause if isinstance(cause, YattError) else error
    text = ANSI_COLOURS.sub("", str(error)).strip()
    if getattr(error, "actor_init_failed", False):
        # Behind the actor's whole traceback stands what its constructor raised.
        return InfrastructureError(f"{waiting_for}: its actor cannot be made: {text.splitlines()[-1]}")
    kind = "its actor died or cannot be reached" if isinstance(error, RayActorError) else type(error).__name__
    return InfrastructureError(f"{waiting_for}: {kind}: {' '.join(text.split())}")
