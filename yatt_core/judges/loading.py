"""Loads a run's judges where they are to work, and lets their verdicts travel in pieces that are worth it.

Consumes the run's inputs; produces judges by reward part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from yatt_core.data.inputs import read_manifest
from yatt_core.engines.pieces import HOLD_SECONDS
from yatt_core.judges.making import judge_model_path
from yatt_core.judges.protocol import Judge, Verdict
from yatt_core.judges.registry import build_judge
from yatt_core.spec import RunSpec
from yatt_core.spec.judges import JudgePart


def load_judges(spec: RunSpec, inputs: Path, parts: Iterable[JudgePart]) -> dict[str, Judge]:
    """The judges of some reward parts, by name. Raises as `build_judge`."""
    listed = list(parts)
    if not listed:
        return {}
    manifest = read_manifest(inputs, spec)
    return {part.name: build_judge(part, judge_model_path(inputs, manifest, part)) for part in listed}


def held_verdicts(
    pieces: Iterable[tuple[Verdict, ...]],
    seconds: float = HOLD_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Verdict, ...]]:
    """The verdicts, joined so that pieces come `seconds` apart; whatever is left comes at the end."""
    held: list[Verdict] = []
    passed_on = now()
    for piece in pieces:
        held += piece
        if held and now() - passed_on >= seconds:
            yield tuple(held)
            held, passed_on = [], now()
    if held:
        yield tuple(held)
