"""Draws the jobs of a pipeline as a graph in SVG, which needs no script. Consumes a `PipelineView`; escapes all texts."""

from __future__ import annotations

from collections import defaultdict

from markupsafe import Markup

from ops.pipelines.view import JobView, PipelineView
from ops.presentation.page import text

WIDE = 168
HIGH = 44
ACROSS = 216
DOWN = 64
EDGE = 12
"""Size of a box, distances between boxes, and the margin."""
LONGEST = 22
"""Characters of a name that fit into a box."""
COLOURS = {
    "done": "c3",
    "skipped": "c3",
    "running": "c1",
    "waiting": "c2",
    "failed": "c4",
    "lost": "c4",
    "planned": "c7",
}


def graph_picture(view: PipelineView) -> Markup:
    """Draws jobs as boxes, those that need others to the right of them, with a line from each job to those that need it."""
    places = _places(view)
    width = max(x for x, _ in places.values()) + WIDE + EDGE
    height = max(y for _, y in places.values()) + HIGH + EDGE
    lines = "".join(_line(places[need], places[job.name]) for job in view.jobs for need in job.needs)
    boxes = "".join(_box(job, *places[job.name]) for job in view.jobs)
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="group" aria-label="{text(f"Jobs of {view.pipeline}")}">'
        f"{lines}{boxes}</svg>"
    )


def _places(view: PipelineView) -> dict[str, tuple[int, int]]:
    """Returns where the boxes are: a column for each level, in the order of the jobs."""
    rows: defaultdict[int, int] = defaultdict(int)
    places: dict[str, tuple[int, int]] = {}
    for job in view.jobs:
        places[job.name] = (EDGE + job.level * ACROSS, EDGE + rows[job.level] * DOWN)
        rows[job.level] += 1
    return places


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x = start[0] + WIDE
    y = start[1] + HIGH // 2
    to_x = end[0]
    to_y = end[1] + HIGH // 2
    middle = (ACROSS - WIDE) // 2
    path = f"M {x} {y} C {x + middle} {y}, {to_x - middle} {to_y}, {to_x} {to_y}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.45"/>'


def _box(job: JobView, x: int, y: int) -> str:
    said = f"{job.name} ({job.kind}): {job.state}{f', {job.reason}' if job.reason else ''}"
    name = job.name if len(job.name) <= LONGEST else f"{job.name[: LONGEST - 1]}…"
    return (
        f'<g class="item" role="img" aria-label="{text(said)}"><title>{text(said)}</title>'
        f'<rect class="{COLOURS[job.state]}" x="{x}" y="{y}" width="6" height="{HIGH}"/>'
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
        f'<text x="{x + 14}" y="{y + 18}">{text(name)}</text>'
        f'<text x="{x + 14}" y="{y + 34}">{text(f"{job.kind}: {job.state}")}</text></g>'
    )
