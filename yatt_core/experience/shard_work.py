"""The work of generating and judging samples, in tokens, on which placement bases its plans.

Consumes a shard's canonical samples and its judgements; produces only counts.
"""

from __future__ import annotations

from collections.abc import Collection

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
    prompts = _lengths(table, "prompt_tokens")
    responses = _lengths(table, "response_tokens")
    if going is not None:
        places, prompts, responses = _drawn(going, judged)
    return ShardWork(
        ordinals=tuple(ordinal for ordinal, _ in places),
        prompt_tokens=prompts,
        response_tokens=responses,
        judged=tuple(tuple(judged.get(place, ())) for place in places),
        read=tuple(read.get(place, 0) for place in places),
    )


def _drawn(
    going: GoingGroups, judged: Collection[tuple[int, int]]
) -> tuple[list[tuple[int, int]], tuple[int, ...], tuple[int, ...]]:
    """Returns the responses that draw in a slice or are judged after it, what each reads, and what it draws.

    One that ended in an earlier slice and is judged with its group counts as a single token, since each sample draws.
    """
    found = [
        ((ordinal, sample), going.questions[ordinal] + going.lengths[ordinal][sample] - new, max(1, new))
        for ordinal, drawn in going.drawn.items()
        for sample, new in enumerate(drawn)
        if new or (ordinal, sample) in judged
    ]
    return (
        [place for place, _, _ in found],
        tuple(read for _, read, _ in found),
        tuple(new for _, _, new in found),
    )


def _lengths(table: pa.Table, name: str) -> tuple[int, ...]:
    lengths: list[int] = np.diff(ragged_column(table, name)[1]).tolist()
    return tuple(lengths)
