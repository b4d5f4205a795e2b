"""Recognisers that installed packages of workloads bring: where they are found, and what to say if there are none.

Consumes the entry points of the group `yatt.recognisers`. Produces them, and an addition to messages.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "yatt.recognisers"


def recogniser_points() -> tuple[EntryPoint, ...]:
    """Returns the entry points of all installed recognisers."""
    return tuple(entry_points(group=GROUP))


def packages_may_know() -> str:
    """Returns what is to be said, behind an error, of data that nothing knows; empty if a recogniser is installed."""
    if recogniser_points():
        return ""
    return "; packages of workloads may recognise other data, but none is installed (docs/workloads.md)"
