"""Flame graphs of where the time of iterations goes, as an SVG picture, an HTML page, or collapsed stacks.

Consumes a `Profile`; produces texts that need nothing else: no script, no font, no network. The picture has a bar for the
critical path and one for each process, all to the same scale, whose full width is the iteration: what is empty, the
process was idle. Below a bar are its phases, and below these their parts; the width of each is its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from ops.presentation.profile_words import NAMES, iterations_text, milliseconds, share, shown_process
from yatt_core.spent_time import DATA, ENGINE, LEDGER, OTHER, PREFECT, RAY, REWARDS, TOOLS, WAITING, WEIGHTS

if TYPE_CHECKING:
    from flows.reports.profile import Profile

CRITICAL = "critical path"
SUFFIXES = (".svg", ".html", ".txt", ".folded")
"""The names of files: the last two are collapsed stacks, as speedscope and flamegraph.pl read them."""
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        ENGINE: "#e8743b",
        REWARDS: "#d9a520",
        TOOLS: "#b58900",
        WEIGHTS: "#c9519f",
        DATA: "#3fa45b",
        RAY: "#5b8def",
        PREFECT: "#2f5fb3",
        LEDGER: "#7a5cc0",
        WAITING: "#c3c7cf",
        OTHER: "#8d939e",
    }
)
PHASE_COLOUR = "#eceef2"
WIDTH, ROW, GAP, MARGIN = 1200, 18, 14, 10
LEAST_WIDTH = 0.3
"""Narrower parts are left out of the picture."""
CHARACTER = 6.4
STYLE = "text{font:11px sans-serif;fill:#16181d}rect{stroke:#fff;stroke-width:.5}.title{font-weight:bold}"


@dataclass(slots=True)
class _Node:
    """A part with those within it. kind: empty for one that only has parts."""

    name: str
    kind: str = ""
    own: float = 0.0
    parts: dict[str, _Node] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.own + sum(part.seconds for part in self.parts.values())

    @property
    def depth(self) -> int:
        return 1 + max((part.depth for part in self.parts.values()), default=0)


@dataclass(frozen=True, slots=True)
class _Stack:
    """A line of collapsed stacks: the names from a bar's to the part's own."""

    names: tuple[str, ...]
    kind: str
    seconds: float


def collapsed(profile: Profile) -> str:
    """Returns a line for each stack, with its microseconds of an iteration."""
    lines = [f"{';'.join(stack.names)} {round(1e6 * stack.seconds)}" for stack in _stacks(profile)]
    return "\n".join(lines) + "\n"


def page(run: str, profile: Profile) -> str:
    """Returns an HTML page with the picture and its legend."""
    title = escape(_title(run, profile))
    legend = "".join(
        f'<span style="background:{COLOURS[kind]};padding:2px 8px;margin-right:6px">{escape(name)}</span>'
        for kind, name in NAMES.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font:14px sans-serif;margin:20px"><h1 style="font-size:18px">{title}</h1>\n<p>{legend}</p>\n'
        f"<p>Each bar has the width of the iteration; hold the pointer over a part for its time.</p>\n"
        f"{picture(run, profile)}</body></html>\n"
    )


def picture(run: str, profile: Profile) -> str:
    """Returns the picture as SVG."""
    bars = _bars(profile)
    height = MARGIN + sum(ROW * (bar.depth + 1) + GAP for bar in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(_title(run, profile))}</title><style>{STYLE}</style>",
    ]
    top = MARGIN
    for bar in bars:
        told = f"{bar.name}: {milliseconds(bar.seconds)} ms, {share(profile, bar.seconds)}"
        lines.append(f'<text class="title" x="{MARGIN}" y="{top + 13}">{escape(told)}</text>')
        scale = (WIDTH - 2 * MARGIN) / max(profile.wall, bar.seconds, 1e-9)
        left = float(MARGIN)
        for part in bar.parts.values():
            lines += _drawn(profile, part, bar.name, left, top + ROW, scale)
            left += part.seconds * scale
        top += ROW * (bar.depth + 1) + GAP
    return "\n".join([*lines, "</svg>"]) + "\n"


def _drawn(profile: Profile, node: _Node, within: str, left: float, top: int, scale: float) -> Iterator[str]:
    """Yields the rectangles of a part and of the parts within it."""
    width = node.seconds * scale
    if width < LEAST_WIDTH:
        return
    told = f"{within}, {node.name}: {milliseconds(node.seconds)} ms, {share(profile, node.seconds)}"
    if node.kind:
        told += f", {NAMES[node.kind]}"
    colour = COLOURS[node.kind] if node.kind else PHASE_COLOUR
    label = node.name[: max(0, int((width - 6) / CHARACTER))]
    yield (
        f'<g><title>{escape(told)}</title><rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{ROW - 1}" '
        f'fill="{colour}"/><text x="{left + 3:.2f}" y="{top + 13}">{escape(label)}</text></g>'
    )
    for part in node.parts.values():
        yield from _drawn(profile, part, f"{within}, {node.name}", left, top + ROW, scale)
        left += part.seconds * scale


def _bars(profile: Profile) -> list[_Node]:
    """Returns the bars, each as the tree of its stacks."""
    bars: dict[str, _Node] = {}
    for stack in _stacks(profile):
        node = bars.setdefault(stack.names[0], _Node(stack.names[0]))
        for name in stack.names[1:]:
            node = node.parts.setdefault(name, _Node(name))
        # A part that was of several kinds has the colour of the longest.
        if stack.seconds > node.own:
            node.kind = stack.kind
        node.own += stack.seconds
    return list(bars.values())


def _stacks(profile: Profile) -> list[_Stack]:
    path = [_Stack((CRITICAL, one.phase, one.process, NAMES[one.kind]), one.kind, one.seconds) for one in profile.path]
    processes = [
        _Stack((shown_process(profile, one.process), *_without_repetition(one.path)), one.kind, one.seconds)
        for one in profile.frames
    ]
    return path + processes


def _without_repetition(path: Sequence[str]) -> tuple[str, ...]:
    """Returns a path in which no part has the name of the one around it, as a call that is named after its phase."""
    return tuple(name for number, name in enumerate(path) if number == 0 or name != path[number - 1])


def _title(run: str, profile: Profile) -> str:
    return f"{run}, {iterations_text(profile.recorded)}: {milliseconds(profile.wall)} ms from commit to commit"
