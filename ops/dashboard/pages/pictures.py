"""SVG pictures of the pages: a run's use of time, an iteration's phases and devices, and a comparison of rewards.

Consumes plain values of the read models; produces markup with escaped texts, or the figures that a template draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from db.write.phases import AttemptRow
from flows.placement.explain import Gantt
from flows.reports.accounting import CHECKPOINT, IDLE, PRODUCTIVE, REDONE, RESTART, START, WAITING
from ops.presentation.page import WIDTH, text
from ops.presentation.placement_gantt import gantt_picture
from ops.queries.rollout_comparison import RolloutComparison
from yatt_core.counting import many

HISTOGRAM_HEIGHT = 120
BUCKETS = {
    PRODUCTIVE: (3, "phases whose results were kept"),
    REDONE: (6, "work that was discarded and repeated"),
    CHECKPOINT: (5, "the trainer waits while its tensors are copied"),
    START: (4, "a driver starts as intended: the first one, or after an orderly end"),
    RESTART: (2, "a driver starts after one that was lost or failed, or restarts what was lost"),
    WAITING: (1, "there is a driver, but no phase is in progress"),
    IDLE: (7, "the run was not meant to be running"),
}
"""Colour number and meaning of each bucket of time (`flows.reports.accounting`)."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """A bucket of time as a segment of a bar 1000 units wide."""

    name: str
    meaning: str
    colour: int
    seconds: float
    share: float
    start: float
    width: float


def time_parts(buckets: Mapping[str, float], wall_seconds: float) -> tuple[TimePart, ...]:
    """Returns the segments of the bar of a run's time; empty if no time has passed."""
    if not wall_seconds:
        return ()
    parts = []
    start = 0.0
    for name, seconds in buckets.items():
        colour, meaning = BUCKETS[name]
        share = seconds / wall_seconds
        parts.append(
            TimePart(
                name=name, meaning=meaning, colour=colour, seconds=seconds, share=share, start=start, width=1000 * share
            )
        )
        start += 1000 * share
    return tuple(parts)


def device_picture(found: Gantt) -> Markup:
    """Draws the role of each device over time."""
    return Markup(gantt_picture(found))


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """An attempt at a phase, as a bar on an axis 1000 units wide.

    start_s: seconds since the iteration's first phase began.
    """

    attempt: AttemptRow
    kind: str
    start_s: float
    seconds: float
    start: float
    width: float


def phase_bars(attempts: Sequence[AttemptRow], now: int) -> tuple[PhaseBar, ...]:
    """Returns the attempts at an iteration's phases as bars, in order.

    now: milliseconds since 1970, the end of bars still in progress.
    """
    spans = [
        (each.planned_at, max(each.planned_at, now if each.ended_at is None else each.ended_at)) for each in attempts
    ]
    begun = min((start for start, _ in spans), default=0)
    longest = max(1, max((end for _, end in spans), default=0) - begun)
    return tuple(
        PhaseBar(
            attempt=attempt,
            kind={"DONE": "first", "FAILED": "failed"}.get(attempt.state, "third"),
            start_s=(start - begun) / 1000,
            seconds=(end - start) / 1000,
            start=1000 * (start - begun) / longest,
            width=max(3.0, 1000 * (end - start) / longest),
        )
        for attempt, (start, end) in zip(attempts, spans, strict=True)
    )


def histogram(found: RolloutComparison) -> Markup:
    """Draws the reward histograms of two iterations as fractions of samples, the older one behind the newer one."""
    width = WIDTH / len(found.after.counts)
    tallest = max(max(_shares(side.counts)) for side in (found.before, found.after)) or 1.0
    bars = "".join(
        bar
        for kind, side, counts in (
            ("c7 band", found.before, found.before.counts),
            ("c1 thin", found.after, found.after.counts),
        )
        if side.seen
        for bar in _bars(kind, _shares(counts), width, tallest)
    )
    items = "".join(_item(found, number, edges, width) for number, edges in enumerate(pairwise(found.edges)))
    return Markup(
        f'<svg class="picture" viewBox="0 0 {WIDTH} {HISTOGRAM_HEIGHT}" role="group" '
        f'aria-label="Rewards of both iterations">{bars}{items}</svg>'
    )


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _bars(kind: str, shares: Sequence[float], width: float, tallest: float) -> Iterator[str]:
    inset = width / 4 if "thin" in kind else 1.0
    for number, share in enumerate(shares):
        height = HISTOGRAM_HEIGHT * share / tallest
        yield (
            f'<rect class="{kind}" x="{number * width + inset:.2f}" width="{width - 2 * inset:.2f}" '
            f'y="{HISTOGRAM_HEIGHT - height:.2f}" height="{height:.2f}"/>'
        )


def _item(found: RolloutComparison, number: int, edges: tuple[float, float], width: float) -> str:
    said = (
        f"reward {edges[0]:.3g} to {edges[1]:.3g}: {many(found.before.counts[number], 'sample')} of iteration "
        f"{found.before.iteration}, {found.after.counts[number]} of iteration {found.after.iteration}"
    )
    return (
        f'<g class="item" role="img" aria-label="{text(said)}"><rect class="halo" x="{number * width:.2f}" '
        f'width="{width:.2f}" y="0" height="{HISTOGRAM_HEIGHT}"/></g>'
    )
