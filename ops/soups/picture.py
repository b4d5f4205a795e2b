"""Draws the fronts of a soup into a PNG. Consumes a `SoupView`; needs matplotlib, an optional dependency."""

from __future__ import annotations

from pathlib import Path

from ops.presentation.png import new_figure
from ops.soups.fronts import SINGLES, panels_of
from ops.soups.view import SoupView
from yatt_core.durable import refusals
from yatt_core.errors import ConfigurationError

COLOURS = ("tab:blue", "tab:orange", "black")
MARKS = ("o", "s", "*")


def write_fronts(view: SoupView, path: Path) -> None:
    """Draws the panels into a PNG.

    Raises `ConfigurationError` if nothing is measured yet or matplotlib is missing, and `InfrastructureError` if the file
    cannot be written.
    """
    panels = panels_of(view)
    if not panels:
        raise ConfigurationError(f"--out: soup {view.soup} has no measured front yet; next: {view.following}")
    if path.suffix != ".png":
        raise ConfigurationError(f"--out {path}: expected a file that ends in .png")
    figure = new_figure(5.0 * len(panels), 4.4)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        for curve, colour, mark in zip(panel.curves, COLOURS, MARKS, strict=False):
            joined = "-" if len(view.objectives) == 2 and curve.name != SINGLES else "none"
            xs = [each.x for each in curve.marks]
            ys = [each.y for each in curve.marks]
            axes.plot(
                xs, ys, color=colour, marker=mark, markersize=5, linestyle=joined, linewidth=1.0, label=curve.name
            )
        axes.set(xlabel=panel.across, ylabel=panel.up)
        axes.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    figure.suptitle(view.soup, parse_math=False)
    with refusals(f"{path}: cannot be written"):
        figure.savefig(path, dpi=130)
