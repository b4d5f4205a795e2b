"""What a rank of several reads of an iteration: its share of the files, and the rows of the samples that it computes on.

The files of an iteration (sealed shards, prepared columns) are dealt out: each is read and verified by one rank. Every rank
gets an outline of all samples, from which all make the same plan, and then, once, the rows of the samples on which it
computes. Consumes a task and its receipts; produces a batch and columns with the shape of the whole batch, which hold this
rank's samples. If a file cannot be used, every rank raises the error of the rank that has read it, so that none waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from yatt_core.engines.train.base.learned_batch import learned_batch
from yatt_core.engines.train.base.preparation import UNLIKE_SAMPLES, require_columns
from yatt_core.engines.train.objectives.registry import objective_of
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.groups import groups_of
from yatt_core.engines.train.steps.plan import PlanShape, StepPlan, plan_step, plan_steps
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
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.wire.columns import fixed_column, ragged_column
from yatt_core.wire.ragged import Array, ragged_positions
from yatt_core.wire.tables import decode_table, encode_table

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
Item = TypeVar("Item")
Found = TypeVar("Found")


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


def samples_of_parts(spec: RunSpec, shape: PlanShape, batch: ExperienceBatch, key: WorkKey) -> tuple[Int64, ...]:
    """Returns the samples of the batch on which each part computes, in `prepare` or in any step of `learn`, ascending."""
    steps = plan_steps(batch.lengths, batch.group_offsets, shape, spec.seed, key.branch, key.iteration)
    everything = np.arange(len(batch), dtype=np.int64)
    distillation = spec.algorithm.distillation

    def plan(lengths: Int64, samples: Int64) -> StepPlan:
        return plan_step(lengths, samples, ranks=shape.ranks, budget=shape.budget, packed=shape.packed, even=shape.even)

    plans = [*steps, plan(batch.lengths, everything)]
    if distillation is not None and distillation.privileged is not None:
        plans.append(plan(batch.shown_to_teacher().lengths, everything))
    if spec.objective is not None and objective_of(spec.objective).labelled:
        labelled = groups_of(batch, labelled=True)
        plans += [plan(batch.lengths, labelled.within(step.samples).first) for step in steps]
    own = [[samples for each in plans for samples in each.parts[part]] for part in range(shape.ranks)]
    return tuple(np.unique(np.concatenate([everything[:0], *found])) for found in own)


def load_own_batch(
    spec: RunSpec, context: RankContext, task: BatchTask, collective: Collective, shape: PlanShape
) -> tuple[ExperienceBatch, tuple[Int64, ...], BytesRead]:
    """Returns a task's batch of sealed samples that holds those of this rank, and the samples of every part.

    Raises `DataError` as `load_learned_batch` does, on every rank.
    """
    world = collective.world

    def read() -> tuple[pa.Table | None, int]:
        mine = dealt(task.shards, world.rank, world.ranks)
        return load_learning_table(context.run_folder, mine) if mine or not task.shards else (None, 0)

    table, size = _by_all(world, read)
    said = [one for one in world.gathered(b"" if table is None else encode_table(outline_of(table), True)) if one]
    outlines = [decode_table(one) for one in said]
    if any(outline.schema != outlines[0].schema for outline in outlines):
        raise DataError(f"{context.run_folder}: {UNLIKE_SHARDS}")
    outlined = batch_of_outline(sort_samples(pa.concat_tables(outlines).combine_chunks()))
    batch = learned_batch(spec, outlined, task)
    parts = samples_of_parts(spec, shape, batch, task.key)
    at = None if table is None else places_in(batch, table)
    sent = [_message(table, at, samples, lambda own, rows: rows_of(own, rows, batch)) for samples in parts]
    rows, received = _received(collective, sent)
    return with_rows(batch, rows), parts, BytesRead(size, received + sum(map(len, said)))


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

    Raises `DataError` as `read_columns` does, on every rank.
    """
    world = collective.world
    names = sorted(prepared.files)

    def read() -> tuple[pa.Table | None, int]:
        mine = dealt(names, world.rank, world.ranks)
        if not mine and names:
            return None, 0
        return read_prepared_table(context.run_folder, prepared.folder, prepared.files, mine)

    table, size = _by_all(world, read)
    at = None if table is None else places_in(batch, table)
    widths = _widths(world=world, batch=batch, table=table, at=at, folder=prepared.folder)
    wanted = [np.arange(len(batch))] * len(parts) if _needs_all(spec) else parts
    sent = [_message(table, at, samples, lambda own, rows: own.filter(pa.array(rows))) for samples in wanted]
    rows, received = _received(collective, sent)
    columns = _spread(batch, rows, widths)
    require_columns(spec, columns, prepared.folder)
    return columns, BytesRead(size, received)


def _needs_all(spec: RunSpec) -> bool:
    """Returns True if every rank reads the columns of all samples of a step, because their tokens decide together."""
    freezes = spec.algorithm.entropy is not None and spec.algorithm.entropy.freezes
    return freezes or spec.objective is not None


def _by_all(world: Collective, read: Callable[[], Found]) -> Found:
    """Returns what this rank reads. Raises `DataError` on every rank if one of them does."""
    try:
        found = read()
    except DataError as error:
        world.gathered(str(error).encode())
        raise
    failures = [said.decode() for said in world.gathered(b"") if said]
    if failures:
        raise DataError(failures[0])
    return found


def _message(
    table: pa.Table | None, at: Int64 | None, samples: Int64, taken: Callable[[pa.Table, Bool], pa.Table]
) -> bytes:
    """Returns what goes to a part of the samples; nothing if this rank has read nothing.

    at: the index in the batch of each row's sample.
    taken: returns what is sent of the rows of a table that are True.
    """
    return b"" if table is None or at is None else encode_table(taken(table, np.isin(at, samples)))


def _received(collective: Collective, sent: Sequence[bytes]) -> tuple[pa.Table, int]:
    """Exchanges rows; returns those for this rank in canonical order, and their bytes. sent: by part."""
    said = collective.exchanged([sent[seat.part] for seat in collective.seats()])
    tables = [decode_table(one) for one in said if one]
    return sort_samples(pa.concat_tables(tables).combine_chunks()), sum(map(len, said))


def _widths(
    world: Collective, batch: ExperienceBatch, table: pa.Table | None, at: Int64 | None, folder: str
) -> dict[str, int]:
    """Returns how many numbers a token has in each wide column of the files of all ranks.

    Raises `DataError` on every rank unless the files have the same columns, and rows for all samples.
    """
    said = b""
    if table is not None and at is not None:
        lengths = fixed_column(table, "response_length")
        fits = bool((at != MISSING).all()) and np.array_equal(lengths, batch.response_lengths[at])
        tokens = max(int(lengths.sum()), 1)
        widths = {
            name: len(ragged_column(table, name)[0]) // tokens for name in WIDE_COLUMNS if name in table.column_names
        }
        said = json.dumps({"names": table.column_names, "widths": widths, "at": at.tolist() if fits else []}).encode()
    heard: list[dict[str, Any]] = [json.loads(one) for one in world.gathered(said) if one]
    if any(one["names"] != heard[0]["names"] for one in heard):
        raise DataError(f"{folder}: {UNLIKE_FILES}")
    if sorted(place for one in heard for place in one["at"]) != list(range(len(batch))):
        raise DataError(f"{folder}: {UNLIKE_SAMPLES}")
    return {name: max(one["widths"][name] for one in heard) for name in heard[0]["widths"]}


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
