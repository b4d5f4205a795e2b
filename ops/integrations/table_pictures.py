"""Draws a table of an evaluation: curves if its first column has numbers, bars if it has texts. Needs matplotlib.

Consumes a `Listing`. Produces a figure, or None for a table without further numbers.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

from yatt_core.workloads.contract import Listing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = 30
"""Rows that are drawn as bars; a table with more texts is none to be drawn."""


def figure_of(table: Listing, title: str) -> Figure | None:
    """Returns the picture of a table; None if there is nothing to draw."""
    from matplotlib.figure import Figure

    columns = list(zip(*table.rows, strict=True))
    drawn = {
        name: [nan if value is None else value for value in column]
        for name, column in zip(table.columns[1:], columns[1:], strict=False)
        if all(value is None or _is_number(value) for value in column)
    }
    if not drawn:
        return None
    curves = all(map(_is_number, columns[0]))
    if not curves and len(table.rows) > BARS:
        return None
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=table.columns[0], title=title)
    axes.grid(alpha=0.25)
    for number, (name, column) in enumerate(drawn.items()):
        if curves:
            axes.plot(columns[0], column, marker="o", markersize=3, linewidth=1.2, label=name)
        else:
            width = 0.8 / len(drawn)
            places = [place - 0.4 + (number + 0.5) * width for place in range(len(column))]
            axes.bar(places, column, width, label=name)
    if not curves:
        axes.set_xticks(range(len(columns[0])), [str(text)[:24] for text in columns[0]], rotation=45, ha="right")
    axes.legend(frameon=False, fontsize="small")
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
