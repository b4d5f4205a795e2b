"""What judges said about samples, from the sealed shards.

Consumes the places of samples in an iteration's shards. Produces `JudgementView`s: words, score, and why there is none. A run
without judges has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from db.write.records import ShardRow
from ops.queries.experience import IterationExperience, verified
from yatt_core.experience.batch import SHARD_KIND
from yatt_core.experience.shard_log import JUDGEMENTS_FILE
from yatt_core.manifests import load_manifest
from yatt_core.protocols.judges import CUT, UNPARSED

Place = tuple[int, int]
"""A prompt's ordinal and a sample's number."""


@dataclass(frozen=True, slots=True)
class JudgementView:
    """One judgement of a sample.

    words: what the judge wrote; empty for a classifier.
    words_cut: True if they were cut for display.
    score: None if there is none.
    why: why there is no score: `unparsed`, `cut`, or why the judge never judged the sample; empty if there is one.
    """

    part: str
    words: str
    words_cut: bool
    score: float | None
    why: str


def judgements_of(
    place: IterationExperience, wanted: Mapping[int, Sequence[Place]], limit: int
) -> dict[Place, tuple[JudgementView, ...]]:
    """Returns the judgements of some samples.

    wanted: the samples by the number of their shard.
    limit: maximum length of each text.

    Raises `DataError` for a damaged file.
    """
    found: dict[Place, tuple[JudgementView, ...]] = {}
    for number, places in wanted.items():
        file = _file_of(place.folder, place.shards[number])
        if file is None:
            continue
        ordinals = sorted({ordinal for ordinal, _ in places})
        for row in pq.read_table(file, filters=[("prompt_ordinal", "in", ordinals)]).to_pylist():
            key = row["prompt_ordinal"], row["sample"]
            if key in places:
                found[key] = (*found.get(key, ()), *_views(row, limit))
    return found


def _file_of(folder: Path, shard: ShardRow) -> Path | None:
    """Returns a shard's judgements, compared with the ledger's digest; None if it has none."""
    path = folder / shard.folder
    entry = load_manifest(path, SHARD_KIND, shard.manifest_sha256).files.get(JUDGEMENTS_FILE)
    if entry is None:
        return None
    verified(path / JUDGEMENTS_FILE, entry.sha256)
    return path / JUDGEMENTS_FILE


def _views(row: Mapping[str, Any], limit: int) -> tuple[JudgementView, ...]:
    if row["error"]:
        return (JudgementView(row["part"], "", words_cut=False, score=None, why=row["error"]),)
    return tuple(
        JudgementView(
            part=row["part"],
            words=one["answer"][:limit],
            words_cut=len(one["answer"]) > limit,
            score=one["score"],
            why="" if one["score"] is not None else CUT if one.get("cut") else UNPARSED,
        )
        for one in row["judgements"]
    )
