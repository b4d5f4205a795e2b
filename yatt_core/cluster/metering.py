"""The driver's only way to take values out of Ray: it counts their bytes, bounds the wait, and speaks in our errors.

The driver sees receipts only; the count shows it (`flow_bytes_per_sample`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from yatt_core.errors import InfrastructureError, StuckError, YattError

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


def metered_get(meter: BytesMeter, references: Sequence[Any], timeout: float, waiting_for: str) -> list[Any]:
    """The values of Ray's references, in their order; their serialised bytes are added to the meter.

    waiting_for: what an error names, such as `shard 3 by controller 1`. The first failure is raised at once, not after the
    slowest: see `unwrap_ray_error`. Raises `StuckError` when `timeout` seconds have passed.
    """
    try:
        values: list[Any] = ray.get(list(references), timeout=timeout)
    except GetTimeoutError as error:
        raise StuckError(f"{waiting_for}: not finished after {timeout:g} s") from error
    except RayError as error:
        raise unwrap_ray_error(error, waiting_for) from error
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
