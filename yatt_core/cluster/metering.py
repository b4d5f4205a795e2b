"""The driver's only way to fetch values from Ray: counts their bytes, limits the wait, and raises YATT's errors.

The driver receives only receipts, and the byte count proves it (`flow_bytes_per_sample`). Waits are split into
slices, and the driver can be interrupted only between slices: an exception that a signal handler raised inside a
call to Ray could surface anywhere, as a `SystemError`.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Protocol

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from yatt_core.errors import ConfigurationError, InfrastructureError, LostActorError, StuckError, YattError
from yatt_core.spent_time import RAY, spent

SLICE_SECONDS = 0.5
"""The longest part of a wait in which the driver cannot be interrupted."""
ANSI_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^'.]+)")
"""Matches how Python ends the traceback of an import that fails since there is no such module."""


class BytesMeter:
    """Counts bytes; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, count: int) -> None:
        """Adds to the byte count."""
        with self._lock:
            self._total += count

    @property
    def total(self) -> int:
        """The bytes counted so far."""
        with self._lock:
            return self._total


class Interruptions(Protocol):
    """Events that may end a wait of the driver."""

    def interrupt(self) -> None:
        """Raises the exception that ends the wait, if there is one."""
        ...

    def shielded(self) -> AbstractContextManager[None]:
        """Returns a context within which signal handlers do not raise."""
        ...


class Uninterrupted:
    """No events: a wait ends only with its result or its timeout."""

    def interrupt(self) -> None:
        """Does nothing: there is no exception that could end the wait."""

    def shielded(self) -> AbstractContextManager[None]:
        """Does nothing: there is no handler that could raise."""
        return nullcontext()


UNINTERRUPTED = Uninterrupted()


def _slices(timeout: float, interruptions: Interruptions) -> Iterator[float]:
    """Yields the lengths, in seconds, of a wait's slices up to its timeout; raises any interruption between them."""
    deadline = time.monotonic() + timeout
    left = timeout
    while left > 0.0 or left == timeout:
        interruptions.interrupt()
        yield max(0.0, min(left, SLICE_SECONDS))
        left = deadline - time.monotonic()


def first_ready(references: Sequence[Any], timeout: float, interruptions: Interruptions = UNINTERRUPTED) -> Any | None:
    """Returns the first Ray reference or stream that is ready; None after `timeout` seconds."""
    for seconds in _slices(timeout, interruptions):
        with interruptions.shielded(), spent(RAY, "answers"):
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
    """Returns the values of Ray references, in order, and adds their serialised bytes to the meter.

    waiting_for: the work to name in errors, such as `shard 3 by controller 1`.

    The first failure is raised at once, without waiting for the slowest reference; see `unwrap_ray_error`.
    Raises `StuckError` after `timeout` seconds.
    """
    for seconds in _slices(timeout, interruptions):
        try:
            with interruptions.shielded(), spent(RAY, "answers"):
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
    """Returns the exception to raise in place of a Ray error.

    A `YattError` raised in an actor is returned unchanged. Any other exception in an actor's code stays a Ray
    error, since it carries the remote traceback; but one that lacks a package, which this process lacks too, is a
    `ConfigurationError`, since another attempt lacks it again. What only the actor's node lacks, another node may have. A dead
    actor becomes a `LostActorError` that names `waiting_for`, and
    anything else that Ray reports, such as an actor that cannot be created, an `InfrastructureError`.
    """
    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        while isinstance(cause, RayTaskError):
            cause = getattr(cause, "cause", None)
        if isinstance(cause, YattError):
            return cause
        lacking = f"{type(cause).__name__}: {cause}" if isinstance(cause, ModuleNotFoundError) else ""
        return lacking_package(lacking, waiting_for) or error
    text = ANSI_COLOURS.sub("", str(error)).strip()
    if getattr(error, "actor_init_failed", False):
        # The exception that the constructor raised comes after the actor's whole traceback.
        last = text.splitlines()[-1]
        cannot = InfrastructureError(f"{waiting_for}: its actor cannot be created: {last}")
        return lacking_package(last, waiting_for) or cannot
    reason = " ".join(text.split())
    if isinstance(error, RayActorError):
        return LostActorError(f"{waiting_for}: its actor died or is unreachable: {reason}")
    return InfrastructureError(f"{waiting_for}: {type(error).__name__}: {reason}")


def lacking_package(line: str, waiting_for: str) -> ConfigurationError | None:
    """Returns the error for an actor that lacks a package; None if it lacks none, or if this process has it.

    line: the last line of the actor's traceback.
    """
    found = NO_MODULE.match(line.strip())
    if found is None or found[1] in sys.modules or find_spec(found[1]) is not None:
        return None
    return ConfigurationError(
        f"{waiting_for}: needs the package {found[1]}, which is not installed; install it on all nodes, then `yatt resume`"
    )
