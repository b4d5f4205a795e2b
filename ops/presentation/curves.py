"""Draws curves with characters: a sparkline in a cell or a line, and several curves over the same axes.

Consumes values in order; produces text. Where nothing was measured, nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
MARKS = "●▲■◆○△□◇"
"""One mark per curve; more curves are not compared at a time."""
BOTH = "▒"
"""Drawn where curves meet."""
LABEL = 9
"""Width of the labels of the vertical axis."""


def sparkline(values: Sequence[float | None]) -> str:
    """Returns a block per value, scaled from the lowest to the highest; equal values are drawn in the middle."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low = min(known)
    span = max(known) - min(known)

    def block(value: float | None) -> str:
        if value is None:
            return " "
        share = (value - low) / span if span > 0 else 0.5
        return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]

    return "".join(map(block, values)).rstrip()


def plot(curves: Mapping[str, Sequence[tuple[float, float]]], width: int, height: int = 12) -> list[str]:
    """Returns the lines of a plot of several curves, given as points (x, y) by name; empty without any point.

    The lines have at most `width` characters. The legend has the mark of each curve, in the order of the names.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    columns = max(10, width - LABEL - 2)
    left, right = _range(x for x, _ in points)
    low, high = _range(y for _, y in points)
    grid = [[" "] * columns for _ in range(height)]
    for mark, curve in zip(MARKS, curves.values(), strict=False):
        for x, y in curve:
            column = round((x - left) / (right - left) * (columns - 1))
            row = height - 1 - round((y - low) / (high - low) * (height - 1))
            grid[row][column] = mark if grid[row][column] in (" ", mark) else BOTH
    labels = {0: high, height // 2: high - (high - low) * (height // 2) / (height - 1), height - 1: low}
    lines = [f"{_label(labels.get(row)):>{LABEL}} ┤{''.join(cells)}".rstrip() for row, cells in enumerate(grid)]
    first = f"{left:g}"
    last = f"{right:g}"
    lines.append(f"{'':>{LABEL}} └{'─' * columns}")
    lines.append(f"{'':>{LABEL}}  {first}{last:>{columns - len(first)}}")
    met = [f"{BOTH} several"] if any(BOTH in row for row in grid) else []
    legend = [f"{mark} {name}" for mark, (name, curve) in zip(MARKS, curves.items(), strict=False) if curve]
    return [*lines, f"{'':>{LABEL}}  {'   '.join([*legend, *met])}"]


def _range(values: Iterable[float]) -> tuple[float, float]:
    listed = list(values)
    low = min(listed)
    high = max(listed)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _label(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
