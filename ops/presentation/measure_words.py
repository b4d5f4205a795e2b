"""Puts a run's most telling metrics into words: their first and newest values.

Consumes `flows.reports.measures.MetricChange`; produces lines for summaries and `yatt show`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.words import at_the_start

if TYPE_CHECKING:
    from flows.reports.measures import MetricChange


def change_line(told: MetricChange, sft: bool) -> str:
    """Returns how a metric has changed.

    sft: the spec has supervised fine-tuning.
    """
    newest = f"{told.last:.3f}{interval(told)}"
    if told.before:
        return f"{told.name} {told.first:.3f} {at_the_start(sft)}, now {newest}"
    return f"{told.name} {told.first:.3f} in iteration {told.first_at}, {newest} in iteration {told.last_at}"


def newest_first(told: MetricChange, sft: bool) -> str:
    """Returns a metric's newest value, and its first one. sft: as for `change_line`."""
    begun = at_the_start(sft) if told.before else f"in iteration {told.first_at}"
    return f"{told.last:.3f}{interval(told)}, {begun} {told.first:.3f}"


def interval(told: MetricChange) -> str:
    """Returns the interval of the newest value in brackets; empty if it has none."""
    return "" if told.low is None else f" (95 % interval {told.low:.3f} to {told.high:.3f})"
