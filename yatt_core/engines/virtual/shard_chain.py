"""What a virtual trainer has learnt of an iteration's sealed shards, one after another (`asynchrony.streamed`): digests.

Consumes tasks that name the first shards of an iteration, or all of them, in their order. Produces one digest of all, in which
a shard that is lost, added twice or added out of turn shows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.moments import scaled
from yatt_core.engines.train.steps.batch_advantages import batch_advantages, shaped_batch
from yatt_core.experience.admission import admission_within, admitted_batch, admitted_table
from yatt_core.experience.batch import batch_of_table, load_table
from yatt_core.experience.table import group_digests
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import Admission, BatchTask, ShardRef
from yatt_core.spec.run import RunSpec


@dataclass(frozen=True, slots=True, eq=False)
class ChainedShard:
    """A shard in the chain.

    ordinals: of its prompts.
    tokens, counted: numbers of its response tokens, and of those that count.
    """

    shard: ShardRef
    ordinals: npt.NDArray[np.int64]
    admission: Admission | None
    digest: bytes
    tokens: int
    counted: int


class ShardChain:
    """The shards of one iteration, in their order."""

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        self._spec = spec
        self._context = context
        self._of: tuple[object, ...] = ()
        self._shards: list[ChainedShard] = []

    @property
    def digest(self) -> bytes:
        """The sha256 of all shards."""
        return hashlib.sha256(b"".join(each.digest for each in self._shards)).digest()

    @property
    def counted(self) -> int:
        """The number of all tokens that count."""
        return sum(each.counted for each in self._shards)

    def drop(self) -> None:
        """Forgets all shards."""
        self._of = ()
        self._shards = []

    def add(self, task: BatchTask) -> int:
        """Adds those of the task's shards that are missing; returns the number of their response tokens.

        Raises `DataError` as `load_table` does.
        """
        inputs = (task.key.branch, task.key.iteration, task.reward_moments)
        if self._of != inputs or not all(
            _is_same(known, shard, task) for known, shard in zip(self._shards, task.shards, strict=False)
        ):
            self.drop()
        self._of = inputs
        added = [self._chained(task, shard) for shard in task.shards[len(self._shards) :]]
        self._shards += added
        return sum(each.tokens for each in added)

    def complete(self, task: BatchTask) -> int:
        """Adds what is missing, as `add` does, and drops what the task does not name."""
        if len(self._shards) > len(task.shards):
            self.drop()
        return self.add(task)

    def _chained(self, task: BatchTask, shard: ShardRef) -> ChainedShard:
        self._context.fetch([shard])
        sealed = load_table(self._context.run_folder, [shard])
        whole = batch_of_table(sealed)
        admission = admission_within(task.admission, whole.ordinals)
        batch = shaped_batch(self._spec, admitted_batch(whole, admission))
        algorithm = self._spec.algorithm
        rewards, _ = scaled(batch.rewards, task.reward_moments, algorithm.reward_scaling, algorithm.epsilon)
        found = batch_advantages(
            spec=self._spec, batch=batch, rewards=rewards, branch=task.key.branch, iteration=task.key.iteration
        )
        digest = hashlib.sha256(group_digests(admitted_table(sealed, admission)))
        digest.update(np.ascontiguousarray(found.samples, dtype="<f8").data)
        if found.tokens is not None:
            digest.update(np.ascontiguousarray(found.tokens, dtype="<f4").data)
        return ChainedShard(
            shard=shard,
            ordinals=np.unique(whole.ordinals),
            admission=admission,
            digest=digest.digest(),
            tokens=len(batch.loss_mask),
            counted=int(np.count_nonzero(batch.loss_mask)),
        )


def _is_same(known: ChainedShard, shard: ShardRef, task: BatchTask) -> bool:
    return known.shard == shard and known.admission == admission_within(task.admission, known.ordinals)
