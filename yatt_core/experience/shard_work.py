"""The work of generating and judging samples, in tokens, on which placement bases its plans.

Consumes a shard's canonical samples and its judgements; produces only counts.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from yatt_core.protocols.receipts import ShardWork
from yatt_core.wire.columns import fixed_column, ragged_column


def shard_work(table: pa.Table, judgements: pa.Table, parts: Collection[str]) -> ShardWork:
    """Returns the work of some samples.

    judgements: the judgements of the same samples.
    parts: the reward parts whose judges run on the run's devices.
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
    return ShardWork(
        ordinals=tuple(ordinals),
        prompt_tokens=_lengths(table, "prompt_tokens"),
        response_tokens=_lengths(table, "response_tokens"),
        judged=tuple(tuple(judged.get(place, ())) for place in places),
        read=tuple(read.get(place, 0) for place in places),
    )


def _lengths(table: pa.Table, name: str) -> tuple[int, ...]:
    lengths: list[int] = np.diff(ragged_column(table, name)[1]).tolist()
    return tuple(lengths)
