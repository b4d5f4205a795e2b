"""Draws two objectives of a soup against each other as SVG. Consumes a `SoupPanel`; produces markup with escaped texts."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from ops.presentation.page import text
from ops.soups.fronts import SINGLES, Curve, Mark, SoupPanel

WIDTH = 640
HEIGHT = 360
EDGE = 48
RADIUS = 5
LARGE = 8
COLOURS = ("c1", "c2", "c7")
LABELS = 3
"""Labels of each axis."""


class _Scale:
    """Places rewards in the picture, with a margin of a twentieth."""

    def __init__(self, panel: SoupPanel) -> None:
        marks = [mark for curve in panel.curves for mark in curve.marks]
        self.x, self.y = (_range([getattr(mark, axis) for mark in marks]) for axis in "xy")

    def across(self, value: float) -> float:
        return EDGE + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - 2 * EDGE)

    def up(self, value: float) -> float:
        return HEIGHT - EDGE - (value - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - 2 * EDGE)


def front_picture(panel: SoupPanel) -> Markup:
    """Draws the models of all curves as circles; each says its preference and rewards."""
    scale = _Scale(panel)
    circles = "".join(
        _circle(panel=panel, curve=curve, mark=mark, colour=colour, scale=scale)
        for curve, colour in reversed(list(zip(panel.curves, COLOURS, strict=False)))
        for mark in curve.marks
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{text(f"{panel.up} by {panel.across}")}">'
        f"{''.join(_axes(panel, scale))}{circles}</svg>"
    )


def _circle(panel: SoupPanel, curve: Curve, mark: Mark, colour: str, scale: _Scale) -> str:
    said = f"{curve.name} {mark.preference}: {panel.across} {mark.x:.4g}, {panel.up} {mark.y:.4g}"
    place = f'cx="{scale.across(mark.x):.1f}" cy="{scale.up(mark.y):.1f}"'
    radius = LARGE if curve.name == SINGLES else RADIUS
    return (
        f'<g class="item" role="img" aria-label="{text(said)}"><title>{text(said)}</title>'
        f'<circle class="{colour}" {place} r="{radius}"/><circle class="halo" {place} r="{radius + 2}"/></g>'
    )


def _axes(panel: SoupPanel, scale: _Scale) -> Iterator[str]:
    for step in range(LABELS):
        share = step / (LABELS - 1)
        x, y = (low + share * (high - low) for low, high in (scale.x, scale.y))
        yield f'<line class="grid" x1="{scale.across(x):.1f}" x2="{scale.across(x):.1f}" y1="{EDGE}" y2="{HEIGHT - EDGE}"/>'
        yield f'<line class="grid" y1="{scale.up(y):.1f}" y2="{scale.up(y):.1f}" x1="{EDGE}" x2="{WIDTH - EDGE}"/>'
        yield f'<text x="{scale.across(x):.1f}" y="{HEIGHT - EDGE + 16}" text-anchor="middle">{x:.3g}</text>'
        yield f'<text x="{EDGE - 6}" y="{scale.up(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{text(panel.across)}</text>'
    yield f'<text x="{EDGE}" y="{EDGE - 14}" text-anchor="middle">{text(panel.up)}</text>'


def _range(values: list[float]) -> tuple[float, float]:
    low = min(values)
    high = max(values)
    margin = (high - low) / 20 or 0.5
    return low - margin, high + margin
