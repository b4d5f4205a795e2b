"""Formats values for pages: addresses of runs, figures, fractions, ages and times.

Consumes plain values; produces texts, and markup for times.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from markupsafe import Markup

from ops.presentation.words import duration

NOTHING = "–"


def run_url(run: str, page: str = "", **query: object) -> str:
    """Returns the address of one of a run's pages; query values that are None are left out."""
    path = "/".join(["/runs", quote(run, safe=""), *filter(None, [page])])
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def figure(value: float | None) -> str:
    """Formats a number with four significant digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def evidence(value: object) -> str:
    """Returns a plain value as a text: names with their values, and values, separated by commas."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {evidence(each)}" for name, each in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(evidence(each) for each in value) or NOTHING
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return figure(value)
    return str(value)


def share(value: float | None) -> str:
    """Formats a fraction as a percentage."""
    return NOTHING if value is None else f"{value:.1%}"


def ago(seconds: float | None) -> str:
    """Formats an age."""
    return NOTHING if seconds is None else f"{duration(max(0.0, seconds))} ago"


def moment(milliseconds: int | None, seconds: bool = True) -> Markup:
    """Formats a time as a `<time>` element.

    milliseconds: since 1970.
    """
    if milliseconds is None:
        return Markup(NOTHING)
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    said = at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="milliseconds"), said)
