"""Draws a run's learning curve as a small picture in its folder. Needs matplotlib, an optional dependency.

Consumes the metrics that the run's objective shows (`flows.reports.measures`). Produces `learning.png`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.measures import HELD_OUT, Axis, bounds_of, measures_of, name_of
from yatt_core.durable import refusals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from db.ledger import Ledger

FILE = "learning.png"
COLORS = (("tab:blue", "tab:cyan", "tab:purple"), ("tab:orange", "tab:green", "tab:red"))
"""Colors of the series on the left and on the right axis."""
Series = dict[str, list[tuple[int, float]]]


def can_draw() -> bool:
    """Returns True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def write_learning_plot(ledger: Ledger, run: str, folder: Path) -> Path | None:
    """Draws what the run's objective measures over the iterations and returns the file.

    Returns None without matplotlib, and for a run that has no such metric yet. Raises `InfrastructureError` if the file cannot be
    written.
    """
    if not can_draw():
        return None
    figure = learning_figure(ledger, run)
    if figure is None:
        return None
    path = folder / FILE
    with refusals(f"{path}: cannot be written"):
        figure.savefig(path, dpi=130)
    return path


def learning_figure(ledger: Ledger, run: str) -> Figure | None:
    """Returns the picture, with the axes and series that have points; None if none has."""
    from matplotlib.figure import Figure

    drawn = [(axis, found) for axis in measures_of(ledger, run).axes if (found := _series(ledger, run, axis))]
    if not drawn:
        return None
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    left = figure.subplots()
    left.set(xlabel="iteration", title=run)
    left.grid(alpha=0.25)
    lines = []
    for number, (axis, found) in enumerate(drawn):
        axes = left.twinx() if number else left
        axes.set(ylabel=axis.label)
        for color, (key, points) in zip(COLORS[number], found.items(), strict=False):
            label = name_of(key) + (" (right)" if number else "")
            lines += _draw(axes=axes, key=key, points=points, color=color, label=label)
            if bounds := bounds_of(ledger, run, key) if key.startswith(HELD_OUT) else {}:
                low, high = ([each[end] for each in bounds.values()] for end in (0, 1))
                axes.fill_between(list(bounds), low, high, color=color, alpha=0.15)
        if axis.from_zero:
            axes.set_ylim(bottom=0.0)
    figure.legend(handles=lines, loc="outside lower center", ncols=min(3, len(lines)), frameon=False, fontsize="small")
    return figure


def _series(ledger: Ledger, run: str, axis: Axis) -> Series:
    return {key: points for key in axis.keys if (points := ledger.metrics.history(run, key))}


def _draw(axes: Any, key: str, points: list[tuple[int, float]], color: str, label: str) -> list[Any]:
    """Draws a series: with marks if it is measured on what is held out, or has a single point, which has no line."""
    marked = {"marker": "o", "markersize": 4} if key.startswith(HELD_OUT) or len(points) == 1 else {"alpha": 0.6}
    steps, values = zip(*points, strict=True)
    drawn: list[Any] = axes.plot(steps, values, color=color, linewidth=1.2, label=label, **marked)
    return drawn
