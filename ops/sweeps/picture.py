"""Draws a sweep as parallel coordinates into a PNG. Consumes a `SweepView`; needs matplotlib, an optional dependency."""

from __future__ import annotations

from pathlib import Path

from ops.presentation.png import new_figure
from ops.sweeps.axes import coordinates_of
from ops.sweeps.view import SweepView
from yatt_core.counting import many
from yatt_core.durable import refusals
from yatt_core.errors import ConfigurationError

FAINTEST = 0.15


def write_coordinates(view: SweepView, path: Path) -> None:
    """Draws the sweep into a PNG.

    Raises `ConfigurationError` if nothing is measured yet or matplotlib is missing, and `InfrastructureError` if the file
    cannot be written.
    """
    found = coordinates_of(view)
    if found is None:
        raise ConfigurationError(f"--out: sweep {view.sweep} has no value yet; next: {view.following}")
    if path.suffix != ".png":
        raise ConfigurationError(f"--out {path}: expected a file that ends in .png")
    figure = new_figure(2.2 * len(found.axes) + 1.5, 4.6)
    axes = figure.subplots()
    for line in sorted(found.lines, key=lambda line: (line.winner, line.share)):
        style = {"color": "tab:orange", "linewidth": 2.5} if line.winner else {"color": "tab:blue", "linewidth": 1.2}
        faint = 1.0 if line.winner else FAINTEST + (1 - FAINTEST) * line.share
        axes.plot(range(len(line.places)), line.places, alpha=faint, **style)
    for x, axis in enumerate(found.axes):
        axes.axvline(x, color="0.4", linewidth=0.8)
        for place, text in axis.labels:
            axes.text(x, place, f" {text}", fontsize="small", va="center", parse_math=False)
    axes.set_xticks(range(len(found.axes)), [axis.name for axis in found.axes], fontsize="small", parse_math=False)
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(found.axes) - 0.6)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)
    figure.suptitle(f"{view.sweep}: {many(len(found.lines), 'trial')}", parse_math=False)
    with refusals(f"{path}: cannot be written"):
        figure.savefig(path, dpi=130)
