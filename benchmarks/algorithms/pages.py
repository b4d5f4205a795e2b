"""The table and the picture of what `benchmarks.algorithms` found. Consumes the figures of runs; changes a folder of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.algorithms.methods import METHODS

PAGE = "algorithms.md"
PICTURE = "images/algorithms.png"
BEGIN = "<!-- benchmarks.algorithms -->"
END = "<!-- end of benchmarks.algorithms -->"
"""The lines of the page between which the table is written."""
WANTED = 1.5
"""What a method has to reach, as a multiple of the accuracy after the warm-up."""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def write_docs(runs: Runs, seeds: Sequence[int], folder: Path) -> None:
    """Replaces the table of the page and the picture. Raises `ValueError` if the page has no place for a table."""
    page = folder / PAGE
    page.write_text(with_table(page.read_text(encoding="utf-8"), table_of(runs, seeds)), encoding="utf-8")
    draw(runs, folder / PICTURE)


def with_table(page: str, table: str) -> str:
    """Returns a page with the lines between the two marks replaced. Raises `ValueError` without the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def table_of(runs: Runs, seeds: Sequence[int]) -> str:
    """Returns the table in Markdown: a row for each method, in order of families."""
    lines = [
        f"| of | method | accuracy | seeds {', '.join(map(str, seeds))} | x warm-up | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        accuracies = [run["accuracy"] for run in found]
        each = ", ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        seconds = mean(run["processor_seconds"] for run in found)
        row = (
            METHODS[name].family,
            f"`{name}`",
            f"{mean(accuracies):.3f}",
            each,
            f"{_times(found):.2f}",
            f"{seconds:.0f}",
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def draw(runs: Runs, path: Path) -> None:
    """Draws each method's mean accuracy as a bar and its runs as dots, beside the accuracy after the warm-up."""
    figure = Figure(figsize=(8.0, 1.2 + 0.19 * len(runs)), layout="constrained")
    axes = figure.subplots()
    families = list(dict.fromkeys(METHODS[name].family for name in runs))
    for row, (name, found) in enumerate(runs.items()):
        colour = f"C{families.index(METHODS[name].family)}"
        accuracies = [run["accuracy"] for run in found]
        axes.barh(row, mean(accuracies), height=0.7, color=colour, alpha=0.55)
        axes.plot(accuracies, [row] * len(accuracies), "o", color=colour, markersize=2.5)
        start = mean(run["accuracy_warmup"] for run in found)
        for value, style in ((start, "-"), (WANTED * start, ":")):
            axes.plot([value, value], [row - 0.5, row + 0.5], style, color="black", linewidth=1.0)
    axes.set_yticks(range(len(runs)), list(runs), fontsize="x-small")
    axes.set(xlabel="held-out accuracy; line: after the warm-up, dotted: 1.5 times that", xlim=(0.0, 1.0))
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _times(found: Sequence[Mapping[str, Any]]) -> float:
    return float(mean(run["accuracy"] for run in found) / max(mean(run["accuracy_warmup"] for run in found), 1e-9))
