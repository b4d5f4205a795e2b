"""Draws a run's learning curve as a small picture in its folder. Needs matplotlib, an optional dependency."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from yatt_core.durable import refusals

if TYPE_CHECKING:
    from db.ledger import Ledger

FILE = "learning.png"
ACCURACY, REWARD, ENTROPY = "evaluation/accuracy", "reward/mean", "entropy"


def write_learning_plot(ledger: Ledger, run: str, folder: Path) -> Path | None:
    """Draws held-out accuracy, reward and entropy over the iterations and returns the file; None without matplotlib.

    Raises `InfrastructureError` if the file cannot be written.
    """
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    left = figure.subplots()
    accuracy, reward, entropy = (ledger.metrics.history(run, key) for key in (ACCURACY, REWARD, ENTROPY))
    left.plot(*_columns(reward), color="tab:blue", alpha=0.45, linewidth=1.0, label="reward, training prompts")
    left.plot(*_columns(accuracy), color="tab:blue", marker="o", markersize=4, label="accuracy, held-out tasks")
    left.set(xlabel="iteration", ylabel="accuracy, reward", title=run)
    left.grid(alpha=0.25)
    right = left.twinx()
    right.plot(*_columns(entropy), color="tab:orange", linewidth=1.0, alpha=0.7, label="entropy (right)")
    right.set(ylabel="entropy, nats per token")
    right.set_ylim(bottom=0.0)
    lines = [*left.get_lines(), *right.get_lines()]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize="small")
    path = folder / FILE
    with refusals(f"{path}: cannot be written"):
        figure.savefig(path, dpi=130)
    return path


def _columns(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]
