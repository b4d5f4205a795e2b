"""Draws the accuracy of a suite over a run's iterations as SVG, with intervals and regressions.

Consumes a `SuiteHistory`; produces markup with escaped texts.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from ops.evaluation.view import SuiteHistory, SuitePoint
from ops.evaluation.words import worse_text
from ops.presentation.page import text

WIDTH = 640
HEIGHT = 240
EDGE = 44
RADIUS = 5
LABELS = 5
GOOD = "c1"
BAD = "c7"


def suite_picture(history: SuiteHistory) -> Markup:
    """Draws each evaluation as a circle with its interval; one that is worse than an earlier one has another colour."""
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{text(f"Accuracy on {history.suite}")}">'
        f"{''.join(_axes(history))}{''.join(_marks(history))}</svg>"
    )


def _marks(history: SuiteHistory) -> Iterator[str]:
    for point in history.points:
        x = _across(history, point.iteration)
        figures = point.figures
        said = f"iteration {point.iteration}: accuracy {figures['accuracy']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"
        worse = f"; worse than {worse_text(point.worse_than)}" if point.worse_than else ""
        y, low, high = (_up(figures[name]) for name in ("accuracy", "low", "high"))
        place = f'cx="{x:.1f}" cy="{y:.1f}"'
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{high:.1f}" y2="{low:.1f}"/>'
            f'<g class="item" role="img" aria-label="{text(said + worse)}"><title>{text(said + worse)}</title>'
            f'<circle class="{_colour(point)}" {place} r="{RADIUS}"/><circle class="halo" {place} r="{RADIUS + 2}"/></g>'
        )


def _axes(history: SuiteHistory) -> Iterator[str]:
    for step in range(LABELS):
        share = step / (LABELS - 1)
        yield f'<line class="grid" y1="{_up(share):.1f}" y2="{_up(share):.1f}" x1="{EDGE}" x2="{WIDTH - EDGE}"/>'
        yield f'<text x="{EDGE - 6}" y="{_up(share) + 4:.1f}" text-anchor="end">{share:.2g}</text>'
    for iteration in sorted({history.points[0].iteration, max(point.iteration for point in history.points)}):
        x = _across(history, iteration)
        yield f'<text x="{x:.1f}" y="{HEIGHT - EDGE + 16}" text-anchor="middle">{iteration}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">iteration</text>'


def _across(history: SuiteHistory, iteration: int) -> float:
    last = max(1, *(point.iteration for point in history.points))
    return EDGE + iteration / last * (WIDTH - 2 * EDGE)


def _up(value: float) -> float:
    return HEIGHT - EDGE - value * (HEIGHT - 2 * EDGE)


def _colour(point: SuitePoint) -> str:
    return BAD if point.worse_than else GOOD
