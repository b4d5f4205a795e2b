"""The identities of traces and spans: functions of the run, branch and iteration, so that every driver continues the
same trace. Pure.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class SpanPlace(NamedTuple):
    """A span's place: where other spans are attached."""

    trace_id: int
    span_id: int


def iteration_place(owner: str, branch: int, iteration: int) -> SpanPlace:
    """Returns the root of an iteration's trace.

    owner: digest that identifies the run among all ledgers.
    """
    return SpanPlace(_number(16, owner, branch, iteration), _number(8, owner, branch, iteration, "iteration"))


def attempt_place(root: SpanPlace, phase: str, number: int) -> SpanPlace:
    """Returns the place of an attempt at a phase."""
    return SpanPlace(root.trace_id, _number(8, root.trace_id, phase, number))


def _number(size: int, *parts: object) -> int:
    """Returns a number other than 0, which stands for no identity."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1
