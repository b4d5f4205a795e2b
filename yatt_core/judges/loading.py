"""Loads a run's judges in the process where they work, and combines their verdicts into pieces worth sending.

Consumes the run's inputs. Produces judges by reward part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from yatt_core.inputs.manifest import judge_model_path, read_manifest
from yatt_core.judges.registry import build_judge
from yatt_core.protocols.judges import Judge, Verdict
from yatt_core.protocols.pieces import joined_in_time
from yatt_core.secret_references import BlockReader
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import JudgePart


def load_judges(
    spec: RunSpec,
    inputs: Path,
    parts: Iterable[JudgePart],
    in_turn: bool = False,
    read_block: BlockReader | None = None,
    shared: Path | None = None,
) -> dict[str, Judge]:
    """Returns the judges of some reward parts by name. Raises as `build_judge` does.

    in_turn: whether each is put to sleep before the next one is loaded.
    read_block: reads a Prefect block, for a key that is in one.
    shared: the folder in which all processes of a home keep the limits and circuits of endpoints; None: not shared.
    """
    listed = list(parts)
    judges = dict[str, Judge]()
    if not listed:
        return judges
    manifest = read_manifest(inputs, spec)
    for part in listed:
        judges[part.name] = build_judge(
            part=part,
            model_path=judge_model_path(manifest, part),
            read_block=read_block,
            shared=shared,
            invariant=spec.must_be_exact,
        )
        if in_turn:
            judges[part.name].sleep()
    return judges


def held_verdicts(pieces: Iterable[tuple[Verdict, ...]]) -> Iterator[tuple[Verdict, ...]]:
    """Yields a judge's verdicts combined into fewer pieces, none of them empty."""
    return joined_in_time((piece or None for piece in pieces), lambda held: tuple(itertools.chain(*held)))
