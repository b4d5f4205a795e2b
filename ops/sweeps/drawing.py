"""Draws a sweep as parallel coordinates in SVG. Consumes `Coordinates`; produces markup with escaped texts."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from ops.presentation.page import text
from ops.sweeps.axes import Coordinates, Line

WIDTH = 920
HEIGHT = 380
EDGE = 60
TOP = 40
FAINTEST = 0.2


def coordinates_picture(found: Coordinates) -> Markup:
    """Draws a line for each trial, the best ones darkest; each says its setting and value."""
    lines = sorted(found.lines, key=lambda line: (line.winner, line.share))
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="Trials by their settings and values">'
        f"{''.join(_axes(found))}{''.join(_line(found, line) for line in lines)}</svg>"
    )


def _across(found: Coordinates, index: int) -> float:
    return EDGE + index / max(1, len(found.axes) - 1) * (WIDTH - 2.5 * EDGE)


def _up(place: float) -> float:
    return HEIGHT - TOP - place * (HEIGHT - 2 * TOP)


def _line(found: Coordinates, line: Line) -> str:
    points = [(_across(found, index), _up(place)) for index, place in enumerate(line.places)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    kind, faint = ("best", 1.0) if line.winner else ("trial", FAINTEST + (1 - FAINTEST) * line.share)
    x, y = points[-1]
    return (
        f'<g class="item" role="img" aria-label="{text(line.said)}"><title>{text(line.said)}</title>'
        f'<polyline class="{kind}" points="{path}" stroke-opacity="{faint:.2f}"/>'
        f'<circle class="{"c2" if line.winner else "c1"}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        f'<circle class="halo" cx="{x:.1f}" cy="{y:.1f}" r="6"/></g>'
    )


def _axes(found: Coordinates) -> Iterator[str]:
    for index, axis in enumerate(found.axes):
        x = _across(found, index)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_up(1):.1f}" y2="{_up(0):.1f}"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 16}" text-anchor="middle">{text(axis.name)}</text>'
        for place, label in axis.labels:
            yield f'<text x="{x + 6:.1f}" y="{_up(place) + 4:.1f}">{text(label)}</text>'
