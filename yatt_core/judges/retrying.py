"""Whether a request is retried, and after how long: pure functions of the response.

Consumes a status code, the `Retry-After` header and the number of the attempt. Produces the decision.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from yatt_core.spec.rewards.judges import EndpointPart

PASSING = frozenset({408, 409, 425, 429})
"""Client errors that may be temporary."""
LIMITED = frozenset({429})
"""The endpoint answers, but not so many requests at once."""

OF_CONTENTS = frozenset({400, 413, 422})
"""Client errors that may be about what is in one request: it is too long, or a filter withholds it."""

Meaning = Literal["fine", "passing", "refused"]


def meaning_of(status: int) -> Meaning:
    """Classifies a status as a success, a temporary failure or a permanent one."""
    if 200 <= status < 300:
        return "fine"
    return "passing" if status in PASSING or status >= 500 else "refused"


def wait_before(part: EndpointPart, attempt: int) -> float:
    """Returns the seconds to wait before the next attempt. attempt: number of the failed attempt, from 0."""
    return min(part.backoff_seconds * 2.0 ** min(attempt, 60), part.longest_wait_seconds)


def asked_seconds(header: str | None, now: datetime) -> float | None:
    """Returns the seconds in a `Retry-After` header (RFC 9110, 10.2.3), given as a number or a date.

    Returns None if there is no header, or if its text is neither.
    """
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
