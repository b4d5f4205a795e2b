"""What a rank of several reads of an iteration: its share of the files, and the rows of the samples that it computes on.

The files of an iteration (sealed shards, prepared columns) are dealt out: each is read and verified by one rank. Every rank
gets an outline of all samples, from which all make the same plan, and then, once, the rows of the samples on which it
computes. Consumes a task and its receipts; produces a batch and columns that hold this rank's samples. They have the shape
of the whole batch, so that an index means the same on every rank: what a rank saves is fetching, reading, verifying and
decompressing, not the memory of the arrays. If a file cannot be used, every rank raises the error of the rank that has read
it, so that none waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from yatt_core.engines.train.base.learned_batch import learned_batch
from yatt_core.engines.train.base.preparation import UNLIKE_SAMPLES, require_columns
from yatt_core.engines.train.ranks.by_all import by_all
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.errors import DataError
from yatt_core.experience.batch import UNLIKE_SHARDS, ExperienceBatch, load_learning_table
from yatt_core.experience.outline import (
    ABSENT,
    MISSING,
    batch_of_outline,
    outline_of,
    places_in,
    rows_of,
    with_rows,
)
from yatt_core.experience.prepared import (
    TOKEN_COLUMNS,
    UNLIKE_FILES,
    WIDE_COLUMNS,
    PreparedColumns,
    columns_of_table,
    read_prepared_table,
)
from yatt_core.experience.table import sort_samples
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.wire.columns import fixed_column, ragged_column
from yatt_core.wire.ragged import Array, ragged_positions
from yatt_core.wire.tables import decode_table, encode_table

Int64 = npt.NDArray[np.int64]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class BytesRead:
    """How much a rank has read.

    files: bytes of the files that it has read.
    received: bytes of outlines and rows that ranks have sent to it, itself included.
    """

    files: int = 0
    received: int = 0

    def __add__(self, other: BytesRead) -> BytesRead:
        return BytesRead(self.files + other.files, self.received + other.received)


def dealt(items: Sequence[Item], rank: int, ranks: int) -> Sequence[Item]:
    """Returns the items that a rank reads: all ranks together read each once."""
    return items[rank::ranks]


def load_own_batch(
    plans: Plans, context: RankContext, task: BatchTask, collective: Collective
) -> tuple[ExperienceBatch, tuple[Int64, ...], BytesRead]:
    """Returns a task's batch of sealed samples that holds those of this rank, and the samples of every part.

    Raises as `load_learned_batch` does, on every rank.
    """
    world = collective.world

    def read() -> tuple[pa.Table | None, bytes, int]:
        mine = dealt(task.shards, world.rank, world.ranks)
        if not mine and task.shards:
            return None, b"", 0
        context.fetch(mine)
        table, size = load_learning_table(context.run_folder, mine)
        return table, encode_table(outline_of(table), compress=True), size

    table, outline, size = by_all(world, read)
    outlines = [one for one in world.gathered(outline) if one]

    def divided() -> tuple[ExperienceBatch, tuple[Int64, ...], list[bytes]]:
        tables = [decode_table(one) for one in outlines]
        if any(one.schema != tables[0].schema for one in tables):
            raise DataError(f"{context.run_folder}: {UNLIKE_SHARDS}")
        batch = learned_batch(plans.spec, batch_of_outline(_joined(tables)), task)
        parts = plans.samples_of_parts(batch, task.key)
        if table is None:
            return batch, parts, [b""] * len(parts)
        at = places_in(batch, table)
        return batch, parts, [encode_table(rows_of(table, np.isin(at, samples), batch)) for samples in parts]

    batch, parts, sent = by_all(world, divided)
    received = _exchanged(collective, sent)
    own = by_all(world, lambda: with_rows(batch, _joined(map(decode_table, received))))
    return own, parts, BytesRead(size, _size(outlines) + _size(received))


def load_own_columns(
    spec: RunSpec,
    context: RankContext,
    batch: ExperienceBatch,
    parts: Sequence[Int64],
    prepared: PrepareReceipt,
    collective: Collective,
) -> tuple[PreparedColumns, BytesRead]:
    """Returns the prepared columns, with the values of this rank's samples; those of others are NaN or `ABSENT`.

    parts: the samples of every part. If a step needs the columns of all its samples on every rank, all are sent.

    Raises as `read_columns` does, on every rank.
    """
    world = collective.world
    names = sorted(prepared.files)

    def read() -> tuple[_Rows | None, bytes, int]:
        mine = dealt(names, world.rank, world.ranks)
        if not mine and names:
            return None, b"", 0
        table, size = read_prepared_table(context.run_folder, prepared.folder, prepared.files, mine)
        rows = _Rows(table, places_in(batch, table))
        return rows, _facts(batch, rows), size

    rows, facts, size = by_all(world, read)
    heard = [json.loads(one) for one in world.gathered(facts) if one]
    together = _needs_all(spec)

    def encoded() -> tuple[dict[str, int], list[bytes]]:
        widths = _widths(heard, len(batch), prepared.folder)
        if rows is None:
            return widths, [b""] * max(len(parts), 1)
        if together:
            return widths, [encode_table(rows.table)]
        return widths, [encode_table(rows.table.filter(pa.array(np.isin(rows.at, samples)))) for samples in parts]

    widths, sent = by_all(world, encoded)
    received: Sequence[bytes | bytearray] = world.gathered(sent[0]) if together else _exchanged(collective, sent)

    def spread() -> PreparedColumns:
        columns = _spread(batch, _joined(decode_table(one) for one in received if one), widths)
        require_columns(spec, columns, prepared.folder)
        return columns

    return by_all(world, spread), BytesRead(size, _size(received))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Prepared rows that a rank has read. at: the index in the batch of each row's sample."""

    table: pa.Table
    at: Int64


def _needs_all(spec: RunSpec) -> bool:
    """Returns True if every rank reads the columns of all samples of a step, because their tokens decide together."""
    freezes = spec.algorithm.entropy is not None and spec.algorithm.entropy.freezes
    return freezes or spec.objective is not None


def _exchanged(collective: Collective, sent: Sequence[bytes]) -> Sequence[bytes]:
    """Returns what other ranks send to this one. sent: by part, what goes to each rank of the part."""
    return [one for one in collective.exchanged([sent[seat.part] for seat in collective.seats()]) if one]


def _joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the rows of tables with the same columns in canonical order."""
    return sort_samples(pa.concat_tables(tables).combine_chunks())


def _size(several: Sequence[bytes | bytearray]) -> int:
    return sum(map(len, several))


def _facts(batch: ExperienceBatch, rows: _Rows) -> bytes:
    """Returns what all ranks must know of the files that one has read.

    Their columns, how many numbers a token has in each wide one, and the places of their rows, none if the tokens are not
    those of the batch.
    """
    table = rows.table
    lengths = fixed_column(table, "response_length")
    fits = bool((rows.at != MISSING).all()) and np.array_equal(lengths, batch.response_lengths[rows.at])
    tokens = max(int(lengths.sum()), 1)
    wide = [name for name in WIDE_COLUMNS if name in table.column_names]
    widths = {name: len(ragged_column(table, name)[0]) // tokens for name in wide}
    places = rows.at.tolist() if fits else []
    return json.dumps({"names": table.column_names, "widths": widths, "places": places}).encode()


def _widths(heard: Sequence[dict[str, Any]], samples: int, folder: str) -> dict[str, int]:
    """Returns how many numbers a token has in each wide column.

    heard: what `_facts` has found, of all ranks that have read files.
    samples: number of samples of the batch.

    Raises `DataError` unless the files have the same columns, and a row for each sample.
    """
    # A file without a token does not show how wide its columns are.
    widths = {name: {facts["widths"].get(name, 0) for facts in heard} - {0} for name in WIDE_COLUMNS}
    if any(facts["names"] != heard[0]["names"] for facts in heard) or any(len(found) > 1 for found in widths.values()):
        raise DataError(f"{folder}: {UNLIKE_FILES}")
    if sorted(place for facts in heard for place in facts["places"]) != list(range(samples)):
        raise DataError(f"{folder}: {UNLIKE_SAMPLES}")
    return {name: max(widths[name], default=0) for name in heard[0]["widths"]}


def _spread(batch: ExperienceBatch, rows: pa.Table, widths: dict[str, int]) -> PreparedColumns:
    """Returns the columns of rows at their samples' places in the whole batch."""
    own = columns_of_table(rows)
    at = places_in(batch, rows)
    positions = ragged_positions(batch.response_offsets, at)
    tokens = len(batch.response_tokens)

    def placed(values: Array | None, where: Int64, shape: tuple[int, ...]) -> Any:
        if values is None:
            return None
        found = np.full(shape, np.nan if values.dtype.kind == "f" else ABSENT, dtype=values.dtype)
        found[where] = values.reshape(len(where), *shape[1:])
        return found

    named = {
        name: placed(getattr(own, name), positions, (tokens, widths[name]) if name in widths else (tokens,))
        for name in (*TOKEN_COLUMNS, *WIDE_COLUMNS)
    }
    return PreparedColumns(
        ordinals=batch.ordinals,
        samples=batch.samples,
        advantages=placed(own.advantages, at, (len(batch),)),
        response_offsets=batch.response_offsets,
        **named,
    )
