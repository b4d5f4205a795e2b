"""When a request is tried again, and after how long: pure functions over what came back.

Consumes a status code, the `Retry-After` header and the number of the attempt; produces what to do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from yatt_core.spec.rewards.judges import EndpointPart

PASSING = frozenset({408, 409, 425, 429})
"""Client errors that another time may not get."""

Meaning = Literal["fine", "passing", "refused"]


def meaning_of(status: int) -> Meaning:
    """Whether an answer of this status is one, may be one another time, or never will be."""
    if 200 <= status < 300:
        return "fine"
    return "passing" if status in PASSING or status >= 500 else "refused"


def wait_before(part: EndpointPart, attempt: int, asked: float | None) -> float:
    """Seconds before attempt + 1. attempt: that has failed, from 0. asked: by the endpoint, which wins where it is longer."""
    own = min(part.backoff_seconds * 2.0 ** min(attempt, 60), part.longest_wait_seconds)
    return own if asked is None else max(own, asked)


def asked_seconds(header: str | None, now: datetime) -> float | None:
    """Seconds that a `Retry-After` header (RFC 9110, 10.2.3) asks for: a number, or a date; None for none or another text."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return float(min(int(text[:12]), 10**9))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())
