"""Draws the Gantt chart of an iteration's collect: a bar per instance, coloured by role, filled by busy fraction.

Consumes the spans of an iteration (`flows.placement.explain.Gantt`); produces a self-contained HTML page or a PNG.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ops.presentation.page import LEFT, WIDTH, page, picture, scale_of, table, text
from ops.presentation.placement_words import role_name
from ops.presentation.png import new_figure, write_figure
from yatt_core.counting import many
from yatt_core.placement.actions import JUDGE, ROLLOUT, TRAINING

if TYPE_CHECKING:
    from flows.placement.explain import Gantt
    from yatt_core.placement.occupancy import RoleSpan

CLASSES = {ROLLOUT: "first", JUDGE: "second", "": "third", TRAINING: "fourth"}
COLOURS = {ROLLOUT: "tab:blue", JUDGE: "tab:orange", "": "tab:gray", TRAINING: "tab:green"}
KEYS = (
    ("first", "rollout"),
    ("second", "judge"),
    ("third", "switching to another role"),
    ("fourth", "the trainer's device"),
)
TALL = 18
FLAT = 6
TALL_UP_TO = 64
GAP = 0.15
"""Heights of tall and flat rows (SVG units), maximum instances with tall rows, gap as a fraction of height."""


def write_gantt(found: Gantt, path: Path) -> None:
    """Writes the chart in the format of the file's suffix. Raises `ConfigurationError` for a PNG without matplotlib."""
    if path.suffix.lower() == ".png":
        _write_png(found, path)
    else:
        path.write_text(gantt_page(found), encoding="utf-8")


def title_of(found: Gantt) -> str:
    """Returns the chart's title."""
    return f"{found.run}, iteration {found.iteration}: {found.mode}"


def summary_of(found: Gantt) -> str:
    """Returns a sentence with the totals and an explanation of the bars."""
    return (
        f"{found.collect_s:.2f} s of collect on {many(found.instances, 'instance')}, {found.idle_fraction:.1%} idle. "
        "The filled part of a bar shows how much of its time in the role the instance was busy."
    )


def gantt_page(found: Gantt) -> str:
    """Returns the HTML page."""
    roles = table(
        "roles",
        ("role", "device seconds", "busy", "idle fraction", "tokens", "tokens/s"),
        [
            (
                role_name(u.role),
                f"{u.device_s:.1f}",
                f"{u.busy_s:.1f}",
                f"{u.idle_fraction:.1%}",
                u.tokens,
                f"{u.tokens_per_s:.0f}",
            )
            for u in found.roles
        ],
    )
    spans = table(
        "spans",
        ("instance", "role", "from s", "to s"),
        [(s.instance, role_name(s.role), f"{s.start_s:.3f}", f"{s.end_s:.3f}") for s in found.spans],
    )
    phases = table(
        "phases, by the driver's clock", ("phase", "seconds"), [(n, f"{s:.2f}") for n, s in found.phases.items()]
    )
    below = f"{roles}{phases}<details><summary>All spans</summary>{spans}</details>"
    return page(title=title_of(found), summary=summary_of(found), keys=KEYS, picture=gantt_picture(found), below=below)


def gantt_picture(found: Gantt) -> str:
    """Returns the chart itself, as SVG."""
    tall = TALL if found.instances <= TALL_UP_TO else FLAT
    scale = scale_of(found.collect_s)
    rows = "".join(_row(found, index, tall, scale) for index in range(found.instances))
    return picture(f"{title_of(found)}, by instance", found.collect_s, tall * found.instances, rows)


def _row(found: Gantt, index: int, tall: int, scale: float) -> str:
    """Returns an instance's row: one focusable element whose label describes all its spans."""
    spans = [span for span in found.spans if span.instance == index]
    top = tall * index
    bars = "".join(part for span in spans for part in _bars(found=found, span=span, top=top, tall=tall, scale=scale))
    name = (
        ""
        if tall == FLAT and index % 8
        else f'<text x="{LEFT - 8}" y="{top + tall - 4}" text-anchor="end">{index}</text>'
    )
    return (
        f'<g class="item" role="img" aria-label="{text(_said(found, index, spans))}">{name}{bars}'
        f'<rect class="halo" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{tall}"/></g>'
    )


def _bars(found: Gantt, span: RoleSpan, top: int, tall: int, scale: float) -> Iterator[str]:
    """Yields a faint band as long as the span, and the filled part of it."""
    height = tall * (1 - GAP)
    place = f'class="{CLASSES[span.role]}{{}}" x="{LEFT + span.start_s * scale:.2f}" width="{span.seconds * scale:.2f}"'
    yield f'<rect {place.format(" band")} y="{top}" height="{height:.2f}"/>'
    filled = height * found.busy.get(f"{span.instance}/{span.role}", 0.0)
    if filled:
        yield f'<rect {place.format("")} y="{top + height - filled:.2f}" height="{filled:.2f}"/>'


def _said(found: Gantt, index: int, spans: list[RoleSpan]) -> str:
    parts = [f"{role_name(span.role)} {span.start_s:.2f} to {span.end_s:.2f} s" for span in spans]
    busy = [
        f"busy {share:.0%} of its time as {role_name(key.partition('/')[2])}"
        for key, share in found.busy.items()
        if key.startswith(f"{index}/")
    ]
    return f"instance {index}: {', '.join(parts)}; {', '.join(busy)}"


def _write_png(found: Gantt, path: Path) -> None:
    figure = new_figure(10.0, min(40.0, 1.8 + 0.18 * found.instances))
    axes = figure.subplots()
    for role in CLASSES:
        spans = [span for span in found.spans if span.role == role]
        rows, lefts, widths = (
            zip(*((s.instance, s.start_s, s.seconds) for s in spans), strict=True) if spans else ((), (), ())
        )
        axes.barh(rows, widths, left=lefts, height=1 - GAP, color=COLOURS[role], alpha=0.3)
        shares = [found.busy.get(f"{span.instance}/{role}", 0.0) * (1 - GAP) for span in spans]
        # The filled part starts at the row's lower edge, which has the larger value since the axis is inverted.
        middles = [row + (1 - GAP - share) / 2 for row, share in zip(rows, shares, strict=True)]
        axes.barh(middles, widths, left=lefts, height=shares, color=COLOURS[role], label=role_name(role))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(0, found.collect_s)
    write_figure(figure=figure, axes=axes, title=title_of(found), summary=summary_of(found), rows="instance", path=path)
