"""The picture of what `benchmarks.peer_run` found: accuracy over seconds, and where an iteration's time goes, on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.peer_run.measured import PARTS, STEP, Measured, Round, mean_parts

PICTURE = "images/peer-run.png"
COLOURS = {"YATT": "C0", "TRL": "C1"}
LEAST_NAMED = 0.04
"""Parts with a smaller share of the longer bar have no number in it."""


def draw(rounds: Sequence[Round], path: Path) -> None:
    """Draws the runs of all rounds."""
    sides = {"YATT": [each.ours for each in rounds], "TRL": [each.trl for each in rounds]}
    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    draw_accuracies(above, sides)
    draw_parts(below, {name: mean_parts(runs) for name, runs in sides.items()})
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def draw_accuracies(axes: Any, sides: dict[str, list[Measured]]) -> None:
    """Draws a line for each run, and where ours end."""
    for name, runs in sides.items():
        for number, run in enumerate(runs):
            axes.plot(
                [point.second for point in run.accuracies],
                [point.accuracy for point in run.accuracies],
                ".-",
                color=COLOURS[name],
                alpha=0.7,
                label=name if number == 0 else None,
            )
    end = mean(run.seconds for run in sides["YATT"])
    axes.axvline(end, color="black", linestyle=":", linewidth=1.0, label="end of YATT's run (mean)")
    axes.set(xlabel="seconds from the command", ylabel="held-out accuracy", ylim=(0.0, 1.0))
    axes.set_xlim(left=0.0)
    axes.legend(fontsize="small", frameon=False)


def draw_parts(axes: Any, parts: dict[str, dict[str, float]]) -> None:
    """Draws a bar for each side, divided into the parts of an iteration; the parts of the step are the darkest ones."""
    longest = max(sum(spent.values()) for spent in parts.values())
    for number, part in enumerate(PARTS):
        for row, spent in enumerate(parts.values()):
            left = sum(spent[before] for before in PARTS[:number])
            axes.barh(
                row,
                spent[part],
                left=left,
                height=0.6,
                color=f"C{number}",
                alpha=0.9 if part in STEP else 0.5,
                label=part if row == 0 else None,
            )
            if spent[part] >= LEAST_NAMED * longest:
                text = f"{1000 * spent[part]:.0f}"
                axes.text(left + spent[part] / 2, row, text, ha="center", va="center", fontsize="x-small")
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set(xlabel="seconds of an iteration (numbers: milliseconds)", ylim=(len(parts) - 0.5, -0.5))
    axes.legend(fontsize="x-small", frameon=False, ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, 1.25))
