"""PNG figures over an axis of seconds of collect.

Needs matplotlib, which is an optional dependency; HTML pages work without it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError


def new_figure(width: float, height: float) -> Any:
    """Returns an empty matplotlib figure, with its size in inches. Raises `ConfigurationError` without matplotlib."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("--out: a PNG needs matplotlib, which is not installed; use FILE.html instead")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Any, axes: Any, title: str, summary: str, rows: str, path: Path) -> None:
    """Writes a figure whose rows run downwards, over an axis of seconds.

    rows: label of the vertical axis.
    """
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds of collect\n\n{summary}", fontsize="small", parse_math=False)
    axes.set_ylabel(rows)
    axes.set_title(title, parse_math=False, loc="left")
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)
