"""The part of an iteration's experience that an update learns from, as admitted by dynamic sampling.

Consumes sealed shards and the recorded admission. Produces a batch, or a table, of exactly the admitted groups
and the padding, in canonical order, no matter what else the shards contain. Samples of admitted groups that have no score
are left out: no baseline, denominator or loss knows them. Padding is masked: none of its tokens counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch, load_batch
from yatt_core.experience.table import group_offsets, is_scored
from yatt_core.protocols.receipts import Admission, BatchTask
from yatt_core.wire.columns import fixed_column

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def admitted_rows(ordinals: Int64, rewards: Float64, scored: Bool, admission: Admission) -> Int64:
    """Returns the indices of the admitted samples that have a score, and of the padding, ascending.

    ordinals, rewards: [N] in canonical order.
    scored: [N], which samples have a score.

    Raises `DataError` for a missing group.
    """
    require_admitted(admission, ordinals)
    learned = np.isin(ordinals, np.array(admission.groups, dtype=np.int64)) & scored
    rows = np.flatnonzero(learned | np.isin(ordinals, np.array(admission.padding, dtype=np.int64)))
    if admission.keep is None:
        return rows
    bounds = group_offsets(ordinals[rows])
    groups = np.split(rows, bounds[1:-1])
    return np.concatenate([best_and_worst(rewards[group], admission.keep) + group[0] for group in groups])


def require_admitted(admission: Admission, ordinals: Int64) -> None:
    """Raises `DataError` if an admitted group, or one that fills up the batch, is not among these prompts' ordinals."""
    wanted = np.array([*admission.groups, *admission.padding], dtype=np.int64)
    missing = wanted[~np.isin(wanted, ordinals)]
    if missing.size:
        raise DataError(f"prompt ordinals {missing[:5].tolist()} were admitted but are missing from the experience")


def best_and_worst(rewards: Float64, keep: int) -> Int64:
    """Returns the indices of a group's `keep` highest and `keep` lowest rewards, ascending; of equal ones, the first.

    rewards: [samples], with samples >= 2 * keep.
    """
    best = np.argsort(-rewards, kind="stable")[:keep]
    others = np.setdiff1d(np.arange(len(rewards)), best)
    worst = others[np.argsort(rewards[others], kind="stable")[:keep]]
    return np.sort(np.concatenate([best, worst]))


def admission_within(admission: Admission | None, ordinals: Int64) -> Admission | None:
    """Returns what an admission says of some groups, given by their prompts' ordinals; None if it is None: all of them."""
    if admission is None:
        return None
    known = frozenset(ordinals.tolist())
    groups = tuple(group for group in admission.groups if group in known)
    return replace(admission, groups=groups, padding=tuple(group for group in admission.padding if group in known))


def load_admitted_batch(run_folder: Path, task: BatchTask) -> ExperienceBatch:
    """Returns the samples of a task without their texts. Raises `DataError` as `load_batch` and `admitted_rows` do."""
    return admitted_batch(load_batch(run_folder, task.shards), task.admission)


def admitted_batch(batch: ExperienceBatch, admission: Admission | None) -> ExperienceBatch:
    """Returns a batch's admitted samples and the padding, masked. Raises the same errors as `admitted_rows`."""
    scored = np.ones(len(batch), dtype=np.bool_) if batch.scored is None else batch.scored
    if admission is None:
        return batch if scored.all() else batch.take(np.flatnonzero(scored))
    admitted = batch.take(admitted_rows(batch.ordinals, batch.rewards, scored, admission))
    if not admission.padding:
        return admitted
    padding = np.isin(admitted.ordinals, np.array(admission.padding, dtype=np.int64))
    counts = admitted.loss_mask & ~np.repeat(padding, admitted.response_lengths)
    return replace(admitted, loss_mask=counts, padding=admission.padding)


def admitted_table(table: pa.Table, admission: Admission | None) -> pa.Table:
    """Returns a table's admitted samples and the padding, all columns unchanged. Raises as `admitted_rows` does."""
    scored = is_scored(table)
    if admission is None:
        return table if scored.all() else table.filter(pa.array(scored))
    rows = admitted_rows(fixed_column(table, "prompt_ordinal"), fixed_column(table, "reward"), scored, admission)
    return table.take(pa.array(rows))
