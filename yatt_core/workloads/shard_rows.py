"""The shards into which a workload cuts an iteration's rows for its samplers: checked before any of them is sampled.

Consumes drawn columns, and the slices that the class has returned for them. Produces slices in which each row is once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from yatt_core.errors import ConfigurationError
from yatt_core.workloads.columns import require_columns
from yatt_core.workloads.contract import Columns


def checked_shards(columns: Columns, shards: Sequence[slice], place: str) -> tuple[slice, ...]:
    """Returns the slices of an iteration's shards, of which the last one may name rows beyond the end.

    place: the workload, for messages.

    Raises `ConfigurationError` unless the columns have rows, equally many each, and the slices name all of them, in order, none
    twice, and at least one each.
    """
    rows = _count(columns, f"{place}: draw")
    if not isinstance(shards, Sequence) or not all(isinstance(shard, slice) for shard in shards):
        raise ConfigurationError(f"{place}: shards returned {shards!r}; expected slices of rows")
    found = []
    at = 0
    for number, shard in enumerate(shards):
        start, stop, step = shard.indices(rows)
        if step != 1 or start != at or stop <= start:
            raise ConfigurationError(
                f"{place}: shards: shard {number} is {shard} of {rows} rows; expected at least one row, and row {at} as the "
                "first: all rows, in order, none twice"
            )
        found.append(slice(start, stop))
        at = stop
    if at != rows:
        raise ConfigurationError(f"{place}: shards: its {len(found)} shards end at row {at}; expected all {rows} rows")
    return tuple(found)


def _count(columns: Columns, place: str) -> int:
    """Returns the number of rows of the columns."""
    require_columns(columns, place)
    counts = {name: len(column) if column.ndim else 0 for name, column in columns.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ConfigurationError(
            f"{place}: its columns have these numbers of rows: {counts}; expected one for all, since samplers draw rows"
        )
    return next(iter(counts.values()))
