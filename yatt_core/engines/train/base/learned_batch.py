"""The batch that an iteration learns from: sealed experience, or rows of the run's data.

Consumes a task. Produces an `ExperienceBatch` with all samples; `own_rows.py` makes it of the samples of a rank.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from yatt_core.engines.train.steps.batch_advantages import shaped_batch
from yatt_core.errors import DataError
from yatt_core.experience.admission import admission_within, admitted_batch, best_and_worst
from yatt_core.experience.batch import ExperienceBatch, batch_of_table, load_learning_table
from yatt_core.inputs.reader import Inputs
from yatt_core.inputs.row_batch import held_out_batch, row_batch
from yatt_core.prompts.codec import open_codec
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.run import RunSpec


def load_learned_batch(spec: RunSpec, context: RankContext, task: BatchTask) -> tuple[ExperienceBatch, int]:
    """Returns a task's batch of sealed samples, and the bytes read; fetches those that the disk of this node lacks.

    Raises `DataError` as `load_batch` and `learned_batch` do, and the errors of `RankContext.fetch`.
    """
    context.fetch(task.shards)
    table, size = load_learning_table(context.run_folder, task.shards)
    return learned_batch(spec, batch_of_table(table), task), size


def load_row_batch(spec: RunSpec, context: RankContext, task: BatchTask) -> ExperienceBatch:
    """Returns the batch of a task's rows. Raises `DataError` as `row_batch` does."""
    codec = open_codec(spec, context.model_path)
    return row_batch(spec, Inputs.open(context.inputs_folder, spec), codec, task.rows)


def learned_batch(spec: RunSpec, batch: ExperienceBatch, task: BatchTask) -> ExperienceBatch:
    """Returns what a task learns of its sealed samples. With an objective, a group has its best and its worst sample only.

    Raises `DataError` as `admitted_batch` does, and for an experience without supports if the update replays them.
    """
    admission = admission_within(task.admission, batch.ordinals) if task.partial else task.admission
    batch = _supported(spec, admitted_batch(batch, admission))
    return shaped_batch(spec, batch) if spec.objective is None else _extremes(batch)


def load_held_out(spec: RunSpec, context: RankContext) -> ExperienceBatch:
    """Returns the held-out rows. Raises as `held_out_batch` does."""
    codec = open_codec(spec, context.model_path)
    return held_out_batch(spec, Inputs.open(context.inputs_folder, spec), codec)


def same_batch(one: BatchTask, other: BatchTask) -> bool:
    """Returns True if two tasks have the same batch; what they name never changes."""
    return (one.shards, one.admission, one.rows) == (other.shards, other.admission, other.rows)


def _supported(spec: RunSpec, batch: ExperienceBatch) -> ExperienceBatch:
    """Returns the batch with the supports of its tokens if the update replays them, otherwise without."""
    if not spec.replays_support:
        return replace(batch, support=None)
    if batch.support is None:
        raise DataError(
            "experience: has no support_tokens, which algorithm.sampler_support: replay needs; it was collected without"
        )
    return batch


def _extremes(batch: ExperienceBatch) -> ExperienceBatch:
    bounds = batch.group_offsets
    groups = [np.arange(start, stop) for start, stop in itertools.pairwise(bounds)]
    return batch.take(np.concatenate([group[best_and_worst(batch.rewards[group], 1)] for group in groups]))
