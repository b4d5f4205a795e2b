"""What samples took to make and to judge, in tokens: what placement plans with.

Consumes a shard's canonical samples and its judgements; produces counts alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from yatt_core.data.columns import fixed_column, ragged_column
from yatt_core.receipts import ShardWork


def shard_work(table: pa.Table, judgements: pa.Table | None) -> ShardWork:
    """The work of some samples. judgements: of the same samples; none where there are no judges, and then nothing is told."""
    if judgements is None:
        return ShardWork()
    judged: dict[tuple[int, int], list[int]] = {}
    for row in judgements.select(["prompt_ordinal", "sample", "judgements"]).to_pylist():
        tokens = judged.setdefault((row["prompt_ordinal"], row["sample"]), [])
        tokens += [one["tokens"] for one in row["judgements"]]
    ordinals, samples = fixed_column(table, "prompt_ordinal").tolist(), fixed_column(table, "sample").tolist()
    return ShardWork(
        tuple(ordinals),
        _lengths(table, "prompt_tokens"),
        _lengths(table, "response_tokens"),
        tuple(tuple(judged.get(place, ())) for place in zip(ordinals, samples, strict=True)),
    )


def _lengths(table: pa.Table, name: str) -> tuple[int, ...]:
    lengths: list[int] = np.diff(ragged_column(table, name)[1]).tolist()
    return tuple(lengths)
