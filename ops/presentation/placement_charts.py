"""Draws a comparison of placement policies: each iteration's measured and simulated seconds as bars.

Consumes a `flows.placement.replay.PolicyComparison`; produces a self-contained HTML page or a PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ops.presentation.page import LEFT, WIDTH, page, picture, scale_of, table, text
from ops.presentation.placement_words import roles_text
from ops.presentation.png import new_figure, write_figure
from yatt_core.counting import many

if TYPE_CHECKING:
    from flows.placement.replay import ComparedDecision, PolicyComparison

BAR = 9
GAP = 8
"""Height of a bar and gap between iterations, in SVG units."""
CLASSES = ("third", "first", "second")
COLOURS = ("tab:gray", "tab:blue", "tab:orange")


def write_comparison(comparison: PolicyComparison, path: Path) -> None:
    """Writes the picture in the format of its suffix. Raises `ConfigurationError` for a PNG without matplotlib."""
    if path.suffix.lower() == ".png":
        _write_png(comparison, path)
    else:
        path.write_text(comparison_page(comparison), encoding="utf-8")


def labels(comparison: PolicyComparison) -> tuple[str, str, str]:
    """Returns the labels of the three bars."""
    return "measured", "simulated as recorded", f"simulated under {comparison.policy}"


def seconds_of(row: ComparedDecision) -> tuple[float | None, float | None, float | None]:
    """Returns the lengths of an iteration's bars, in seconds."""
    return row.collect_s, row.recorded_s, row.other_s


def comparison_page(comparison: PolicyComparison) -> str:
    """Returns the HTML page."""
    rows = [
        (
            row.iteration,
            roles_text(row.recorded),
            "" if row.start is None else roles_text(row.start),
            *("" if value is None else f"{value:.2f}" for value in seconds_of(row)),
        )
        for row in comparison.rows
    ]
    columns = ("iteration", "recorded start", f"start under {comparison.policy}", *labels(comparison))
    keys = tuple(zip(CLASSES, labels(comparison), strict=True))
    return page(
        title=title_of(comparison),
        summary=summary_of(comparison),
        keys=keys,
        picture=_picture(comparison),
        below=table("seconds", columns, rows),
    )


def title_of(comparison: PolicyComparison) -> str:
    """Returns the picture's title."""
    return f"{comparison.run}: what {comparison.policy} would have cost"


def summary_of(comparison: PolicyComparison) -> str:
    """Returns a sentence with the totals."""
    if comparison.ratio is None:
        return "No iteration has recorded work."
    return (
        f"Simulated collect over {many(comparison.iterations, 'iteration')}: {comparison.other_s:.1f} s, {comparison.ratio:.3f} "
        f"of the {comparison.recorded_s:.1f} s of the recorded decisions; measured: {comparison.collect_s:.1f} s."
    )


def _picture(comparison: PolicyComparison) -> str:
    longest = max((value or 0.0 for row in comparison.rows for value in seconds_of(row)), default=0.0)
    scale = scale_of(longest)
    tall = len(CLASSES) * BAR + GAP
    rows = "".join(_row(comparison, row, tall * number, scale) for number, row in enumerate(comparison.rows))
    return picture(title_of(comparison), longest, tall * len(comparison.rows), rows)


def _row(comparison: PolicyComparison, row: ComparedDecision, top: int, scale: float) -> str:
    bars = []
    said = []
    for number, (kind, name, value) in enumerate(zip(CLASSES, labels(comparison), seconds_of(row), strict=True)):
        said.append(f"{name} {'unknown' if value is None else f'{value:.2f} s'}")
        width = (value or 0.0) * scale
        bars.append(
            f'<rect class="{kind}" x="{LEFT}" y="{top + number * BAR}" width="{width:.2f}" height="{BAR - 1}"/>'
        )
    height = len(CLASSES) * BAR
    whole = text(f"iteration {row.iteration}: {', '.join(said)}")
    return (
        f'<g class="item" role="img" aria-label="{whole}">'
        f'<text x="{LEFT - 8}" y="{top + height / 2 + 4:.1f}" text-anchor="end">{row.iteration}</text>{"".join(bars)}'
        f'<rect class="halo" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{height}"/></g>'
    )


def _write_png(comparison: PolicyComparison, path: Path) -> None:
    figure = new_figure(9.0, min(40.0, 1.8 + 0.45 * len(comparison.rows)))
    axes = figure.subplots()
    for number, (colour, name) in enumerate(zip(COLOURS, labels(comparison), strict=True)):
        places = [row.iteration + (number - 1) * 0.27 for row in comparison.rows]
        values = [seconds_of(row)[number] or 0.0 for row in comparison.rows]
        axes.barh(places, values, height=0.25, color=colour, label=name)
    axes.set_yticks([row.iteration for row in comparison.rows])
    write_figure(
        figure=figure,
        axes=axes,
        title=title_of(comparison),
        summary=summary_of(comparison),
        rows="iteration",
        path=path,
    )
