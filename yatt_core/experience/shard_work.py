"""The work of generating and judging samples, in tokens, on which placement bases its plans.

Consumes a shard's canonical samples and its judgements; produces only counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from yatt_core.experience.carried import GoingGroups
from yatt_core.protocols.receipts import ShardWork
from yatt_core.wire.columns import fixed_column, ragged_column


def shard_work(
    table: pa.Table, judgements: pa.Table, parts: Collection[str], going: GoingGroups | None = None
) -> ShardWork:
    """Returns the work of some samples.

    judgements: the judgements of the same samples.
    parts: the reward parts whose judges run on the run's devices.
    going: what a slice has made of the samples' groups and of others; None if responses are drawn whole. What was drawn before
        counts as part of the prompt, which is read again.
    """
    judged: dict[tuple[int, int], list[int]] = {}
    read: dict[tuple[int, int], int] = {}
    for row in judgements.select(["prompt_ordinal", "sample", "part", "judgements"]).to_pylist():
        if row["part"] not in parts:
            continue
        place = (row["prompt_ordinal"], row["sample"])
        judged.setdefault(place, []).extend(one["tokens"] for one in row["judgements"])
        read[place] = read.get(place, 0) + max((one["prompt_tokens"] for one in row["judgements"]), default=0)
    ordinals = fixed_column(table, "prompt_ordinal").tolist()
    samples = fixed_column(table, "sample").tolist()
    places = list(zip(ordinals, samples, strict=True))
    drawn = ShardWork(
        ordinals=tuple(ordinals),
        prompt_tokens=_lengths(table, "prompt_tokens"),
        response_tokens=_lengths(table, "response_tokens"),
    )
    if going is not None:
        places = [
            (ordinal, sample)
            for ordinal, group in going.groups.items()
            for sample, new in enumerate(group.drawn)
            if new or (ordinal, sample) in judged
        ]
        drawn = _slice_work(going, places)
    return replace(
        drawn,
        judged=tuple(tuple(judged.get(place, ())) for place in places),
        read=tuple(read.get(place, 0) for place in places),
    )


def _slice_work(going: GoingGroups, places: Sequence[tuple[int, int]]) -> ShardWork:
    """Returns what responses read and draw in a slice.

    places: those that draw in it, and those that are judged with their group although they ended before; as each sample of a
        placement draws, these count as a single token.
    """
    parts = [(going.groups[ordinal], sample) for ordinal, sample in places]
    before = [group.lengths[sample] - group.drawn[sample] for group, sample in parts]
    return ShardWork(
        ordinals=tuple(ordinal for ordinal, _ in places),
        prompt_tokens=tuple(group.question + tokens for (group, _), tokens in zip(parts, before, strict=True)),
        response_tokens=tuple(max(1, group.drawn[sample]) for group, sample in parts),
        goes_on=tuple(tokens > 0 for tokens in before),
    )


def work_fields(work: ShardWork) -> dict[str, Any]:
    """Returns work as a manifest has it: without slices, none goes on."""
    found = asdict(work)
    if not work.goes_on:
        del found["goes_on"]
    return found


def _lengths(table: pa.Table, name: str) -> tuple[int, ...]:
    lengths: list[int] = np.diff(ragged_column(table, name)[1]).tolist()
    return tuple(lengths)
