"""Reads what a rank needs of an iteration: the batch, kept from `prepare` to `learn`, and the prepared columns.

Consumes tasks and receipts. A rank that is alone reads everything; one of several reads its share of the files and gets the
rows of its samples (`own_rows.py`). Counts the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.train.base.learned_batch import load_learned_batch, load_row_batch, same_batch
from yatt_core.engines.train.base.own_rows import BytesRead, load_own_batch, load_own_columns
from yatt_core.engines.train.base.preparation import read_columns
from yatt_core.engines.train.ranks.by_all import by_all
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.errors import InfrastructureError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import READ_BYTES, RECEIVED_BYTES, BatchTask, PrepareReceipt
from yatt_core.spec.run import RunSpec


@dataclass(frozen=True, slots=True)
class _Kept:
    """A batch that has been read. parts: the samples of every part, if a rank does not hold all."""

    task: BatchTask
    batch: ExperienceBatch
    parts: tuple[npt.NDArray[np.int64], ...] = ()


class BatchReader:
    """Reads sealed experience for one rank; every rank must make the same calls."""

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        self._spec = spec
        self._context = context
        self._kept: _Kept | None = None
        self._read = BytesRead()

    def batch(self, task: BatchTask, collective: Collective, plans: Plans) -> ExperienceBatch:
        """Returns the task's batch. Sealed shards never change, so that `learn` gets the one that `prepare` has read.

        Raises as `load_learned_batch` does, on every rank.
        """
        kept = self._kept
        lacks = kept is None or not same_batch(kept.task, task) or not _same_plan(kept.task.key, task.key)
        # A rank that has lost its batch needs the others to send it rows.
        if bool(collective.world.maximum(torch.tensor(float(lacks)))):
            self._kept = self._loaded(task, collective, plans)
        return self._own().batch

    def columns(self, prepared: PrepareReceipt, collective: Collective) -> PreparedColumns:
        """Returns the prepared columns of the batch. Raises as `read_columns` does, on every rank."""
        kept = self._own()
        if collective.world.ranks == 1:
            columns, size = read_columns(self._spec, self._context.run_folder, kept.batch, prepared)
            self._read += BytesRead(size)
            return columns
        columns, read = load_own_columns(
            spec=self._spec,
            context=self._context,
            batch=kept.batch,
            parts=kept.parts,
            prepared=prepared,
            collective=collective,
        )
        self._read += read
        return columns

    def drop(self) -> None:
        """Drops the batch."""
        self._kept = None

    def finish(self) -> dict[str, float]:
        """Drops the batch of an iteration that is done, or begun in vain. Returns the bytes that were read for it."""
        read = self._read
        self._kept = None
        self._read = BytesRead()
        return {READ_BYTES: float(read.files), RECEIVED_BYTES: float(read.received)}

    def _loaded(self, task: BatchTask, collective: Collective, plans: Plans) -> _Kept:
        if collective.world.ranks == 1:
            batch, size = by_all(collective.world, lambda: load_learned_batch(self._spec, self._context, task))
            self._read += BytesRead(size)
            return _Kept(task, batch)
        batch, parts, read = load_own_batch(plans, self._context, task, collective)
        self._read += read
        return _Kept(task, batch, parts)

    def _own(self) -> _Kept:
        if self._kept is None:
            raise InfrastructureError("the trainer has no batch: it must be read before its columns")
        return self._kept


class RowReader(BatchReader):
    """Reads rows of the run's data, which every rank has."""

    def _loaded(self, task: BatchTask, collective: Collective, plans: Plans) -> _Kept:
        return _Kept(task, by_all(collective.world, lambda: load_row_batch(self._spec, self._context, task)))


def _same_plan(one: WorkKey, other: WorkKey) -> bool:
    """Returns True if two pieces of work have the same plan of their steps for a batch."""
    return (one.branch, one.iteration) == (other.branch, other.iteration)
