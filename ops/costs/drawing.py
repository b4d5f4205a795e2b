"""Draws what runs cost as stacked bars by cause. Consumes stacks by name; produces SVG with escaped texts."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from markupsafe import Markup

from ops.costs.words import amount
from ops.presentation.page import text
from yatt_core.costs.charging import FAULTS, IDLE, START, TRAINING

LEFT = 220
RIGHT = 120
WIDTH = 1000
TALL = 22
GAP = 4
BARS = 40
"""Maximum number of bars; the largest ones."""
CAUSE_COLOURS = {TRAINING: "c1", FAULTS: "c2", START: "c3", IDLE: "c7"}
LETTERS = 30


def cost_picture(unit: str, stacks: Mapping[str, Mapping[str, Decimal]]) -> Markup:
    """Returns the picture; each bar says its amounts.

    stacks: amounts by cause, by name.
    """
    order = sorted(stacks, key=lambda name: (-sum(stacks[name].values()), name))[:BARS]
    largest = max((sum(stacks[name].values(), Decimal(0)) for name in order), default=Decimal(0))
    bars = "".join(
        _bar(place=place, name=name, stack=stacks[name], unit=unit, largest=largest) for place, name in enumerate(order)
    )
    height = TALL * len(order) + GAP
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height}" role="group" aria-label="Costs in {text(unit)}">{bars}</svg>')


def _bar(place: int, name: str, stack: Mapping[str, Decimal], unit: str, largest: Decimal) -> str:
    scale = (WIDTH - LEFT - RIGHT) / float(largest) if largest else 0.0
    top = TALL * place + GAP
    left = float(LEFT)
    parts = []
    for cause, colour in CAUSE_COLOURS.items():
        width = float(stack.get(cause, Decimal(0))) * scale
        parts.append(f'<rect class="{colour}" x="{left:.2f}" y="{top}" width="{width:.2f}" height="{TALL - GAP}"/>')
        left += width
    total = amount(str(sum(stack.values(), Decimal(0))))
    said = ", ".join(f"{cause} {amount(str(stack[cause]))}" for cause in CAUSE_COLOURS if stack.get(cause))
    label = text(f"{name}: {total} {unit}; {said}")
    shown = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    return (
        f'<g class="item" role="img" aria-label="{label}"><title>{label}</title>'
        f'<text x="{LEFT - 8}" y="{top + TALL - 8}" text-anchor="end">{text(shown)}</text>{"".join(parts)}'
        f'<text x="{left + 6:.2f}" y="{top + TALL - 8}">{total}</text>'
        f'<rect class="halo" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{TALL - GAP}"/></g>'
    )
