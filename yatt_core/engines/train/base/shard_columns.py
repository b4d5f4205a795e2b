"""Prepared columns of one shard at a time: at their samples' places in the shard's batch, and joined to those of an iteration.

Consumes columns as `prepare` makes them: of a rank's samples, or of all. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.outline import ABSENT
from yatt_core.experience.prepared import TOKEN_COLUMNS, WIDE_COLUMNS, PreparedColumns
from yatt_core.wire.ragged import Array, offsets_of, ragged_positions

Int64 = npt.NDArray[np.int64]


def placed_columns(batch: ExperienceBatch, at: Int64, columns: PreparedColumns) -> PreparedColumns:
    """Returns columns of some samples of a batch at their places in it; those of others are NaN or `ABSENT`.

    at: the indices of the samples, in the order of the columns.
    """
    if len(at) == len(batch):
        return columns
    positions = ragged_positions(batch.response_offsets, at)

    def placed(values: Array | None, places: Int64, count: int) -> Any:
        if values is None:
            return None
        nothing = np.nan if values.dtype.kind == "f" else ABSENT
        found = np.full((count, *values.shape[1:]), nothing, dtype=values.dtype)
        found[places] = values
        return found

    tokens = len(batch.response_tokens)
    named = {name: placed(getattr(columns, name), positions, tokens) for name in (*TOKEN_COLUMNS, *WIDE_COLUMNS)}
    return PreparedColumns(
        ordinals=batch.ordinals,
        samples=batch.samples,
        advantages=placed(columns.advantages, at, len(batch)),
        response_offsets=batch.response_offsets,
        **named,
    )


def joined_columns(parts: Sequence[PreparedColumns]) -> PreparedColumns:
    """Returns the columns of several shards, one shard after another; all have the same columns."""
    named = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in (*TOKEN_COLUMNS, *WIDE_COLUMNS)
        if getattr(parts[0], name) is not None
    }
    return PreparedColumns(
        ordinals=np.concatenate([part.ordinals for part in parts]),
        samples=np.concatenate([part.samples for part in parts]),
        advantages=np.concatenate([part.advantages for part in parts]),
        response_offsets=offsets_of(np.concatenate([np.diff(part.response_offsets) for part in parts])),
        **named,
    )
