"""Figures for PNG files. Needs matplotlib, which is no dependency of YATT: who has none can have an HTML page."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from yatt_core.errors import ConfigurationError


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches. Raises `ConfigurationError` where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("--out: a PNG needs matplotlib, which is not installed; right would be FILE.html")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
