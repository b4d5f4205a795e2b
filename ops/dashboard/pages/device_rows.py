"""Draws the devices of an iteration: a row per device, a bar per phase, filled by how busy it was.

Consumes `ops.queries.devices.DeviceUse`; produces SVG with escaped texts.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from ops.presentation.page import LEFT, WIDTH, picture, scale_of, text
from ops.presentation.words import phase_name
from ops.queries.devices import SYNC, TRAINER, DeviceSpan, DeviceTimeline, DeviceUse

TALL = 18
GAP = 0.15
CLASSES = {"rollout": "first", "judge": "second", TRAINER: "c3", SYNC: "third"}
KEYS = (("first", "rollout"), ("second", "judge"), ("c3", "trainer"), ("third", "weights are moved"))


def device_rows(found: DeviceUse, sft: bool) -> Markup:
    """Returns the picture.

    sft: whether the run's spec has supervised fine-tuning.
    """
    scale = scale_of(found.seconds)
    rows = "".join(_row(place, device, scale, sft) for place, device in enumerate(found.devices))
    label = f"{found.run}, iteration {found.iteration}: devices over time"
    return Markup(picture(label, found.seconds, TALL * len(found.devices), rows))


def _row(place: int, device: DeviceTimeline, scale: float, sft: bool) -> str:
    top = TALL * place
    bars = "".join(part for span in device.spans for part in _bars(span, top, scale))
    return (
        f'<g class="item" role="img" aria-label="{text(_said(device, sft))}">'
        f'<text x="{LEFT - 8}" y="{top + TALL - 4}" text-anchor="end">{device.number}</text>{bars}'
        f'<rect class="halo" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{TALL}"/></g>'
    )


def _bars(span: DeviceSpan, top: int, scale: float) -> Iterator[str]:
    """Yields a faint band as long as the span, and the filled part of it; an unknown use fills it."""
    height = TALL * (1 - GAP)
    width = max(1.0, (span.end_s - span.start_s) * scale)
    place = f'x="{LEFT + span.start_s * scale:.2f}" width="{width:.2f}"'
    yield f'<rect class="{CLASSES[span.role]} band" {place} y="{top}" height="{height:.2f}"/>'
    filled = height * (1.0 if span.busy is None else span.busy)
    yield f'<rect class="{CLASSES[span.role]}" {place} y="{top + height - filled:.2f}" height="{filled:.2f}"/>'


def _said(device: DeviceTimeline, sft: bool) -> str:
    parts = [
        f"{phase_name(span.phase, sft)} by {span.actor}, {span.start_s:.2f} to {span.end_s:.2f} s"
        + ("" if span.busy is None else f", busy {span.busy:.0%}")
        for span in device.spans
    ]
    return f"device {device.number}: occupied {device.occupied:.0%}; {'; '.join(parts) or 'nothing'}"
