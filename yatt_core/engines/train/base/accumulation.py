"""Streamed learning (`asynchrony.streamed`): what a rank prepares and learns of an iteration's sealed shards, one after another.

Consumes tasks that name the first shards of an iteration, or all of them, in their order. Adds the gradients of each shard to
those in the optimizer; the last task makes of their sum the iteration's only step. Whatever is lost on the way, or was added
for other inputs, is thrown away and added again: the update is a function of the sealed shards in their order, and not of the
moments at which they were named. Micro-batches have samples of one shard alone.

A token's loss has no denominator until the step: it is divided by that of the whole iteration once, in the summed gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.algorithms.aggregation import denominator, undivided_weights
from yatt_core.algorithms.moments import RewardMoments
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.preparation import Preparation, collected_columns, has_token_columns
from yatt_core.engines.train.base.shard_columns import joined_columns, placed_columns
from yatt_core.engines.train.base.updating import TOLD, Updated, learning_rate
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.sequences import counted_lengths
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.batch_advantages import moments_after
from yatt_core.engines.train.steps.learner import PolicyLearner, reduce_sums, update_metrics
from yatt_core.engines.train.steps.objective import LossSums
from yatt_core.engines.train.steps.plan import StepPlan, plan_digest
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.steps.shared_columns import samples_of
from yatt_core.experience.admission import admission_within, require_admitted
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns, publish_prepared
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import Admission, BatchTask, PrepareReceipt, ShardRef
from yatt_core.spec.run import RunSpec

Int64 = npt.NDArray[np.int64]
DIVIDED = ("loss", "policy_loss")
"""Sums that have the losses' weights, and so their denominator."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What computes gradients on a rank: the model as it is now.

    prepare: computes the columns of a batch.
    """

    plans: Plans
    forward: TokenPasses
    optimizer: PolicyOptimizer
    collective: Collective
    prepare: Callable[[ExperienceBatch, BatchTask], Preparation]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What gradients depend on besides weights and shards."""

    branch: int
    iteration: int
    moments: RewardMoments
    coefficients: Mapping[str, float]

    @classmethod
    def of(cls, task: BatchTask) -> Inputs:
        """Returns those of a task."""
        return cls(task.key.branch, task.key.iteration, task.reward_moments, dict(task.coefficients))


@dataclass(frozen=True, slots=True, eq=False)
class LearntShard:
    """A shard whose gradients are in the optimizer.

    ordinals: of its prompts.
    admission: what of it is learnt from.
    plan: of its micro-batches.
    columns: as in `Preparation`.
    rows: number of samples, padding included.
    samples, tokens: what counts in the loss.
    moments: of all rewards up to this shard's.
    sums: of this rank's part.
    read: bytes that were read for it.
    """

    shard: ShardRef
    ordinals: Int64
    admission: Admission | None
    plan: StepPlan
    columns: PreparedColumns
    metrics: Mapping[str, float]
    rows: int
    samples: int
    tokens: int
    moments: RewardMoments
    sums: LossSums
    read: Mapping[str, float]


class Accumulation:
    """The shards of one iteration whose gradients a rank has added up; every rank must make the same calls."""

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        self._spec = spec
        self._context = context
        self._inputs: Inputs | None = None
        self._shards: list[LearntShard] = []

    def drop(self) -> None:
        """Forgets what has been added, because gradients or weights are others now."""
        self._inputs = None
        self._shards = []

    def add(self, task: BatchTask, passes: Passes) -> float:
        """Adds the gradients of those of the task's shards that lack them, in order; returns the seconds that it took.

        Raises what the loading of a batch and `Preparer.prepare` raise, on every rank; what was added is then dropped.
        """
        started = time.perf_counter()
        if not self._agreed(task, passes.collective):
            self.drop()
            passes.optimizer.zero()
        shards = self._shards
        self.drop()  # until the gradients of the next shard are whole
        for shard in task.shards[len(shards) :]:
            before = shards[-1].moments if shards else task.reward_moments
            shards.append(self._learnt(replace(task, shards=(shard,), partial=True), before, passes))
        self._shards = shards
        self._inputs = Inputs.of(task)
        return time.perf_counter() - started

    def prepare(self, task: BatchTask, passes: Passes) -> PrepareReceipt | None:
        """Adds what is missing; rank 0 gets the columns of all ranks, publishes them and returns the receipt.

        Raises what `add` raises, and `DataError` if an admitted group is in none of the shards.
        """
        started = time.perf_counter()
        self._complete(task, passes)
        shards = self._shards
        contents = collected_columns(self._spec, passes.collective, joined_columns([each.columns for each in shards]))
        if passes.collective.world.rank > 0:
            return None
        folder, digests = publish_prepared(self._context.run_folder, task.key, task.term, contents)
        return PrepareReceipt(
            key=task.key,
            folder=folder,
            files=digests,
            metrics=_metrics(shards),
            timing={"seconds": time.perf_counter() - started},
            reward_moments=shards[-1].moments,
            coefficients=task.coefficients,
        )

    def take(self, task: BatchTask, passes: Passes, changed: Callable[[], None]) -> tuple[Updated, dict[str, float]]:
        """Adds what is missing and takes the step; returns its outcome, and the bytes that were read for it.

        changed: called after the step.

        Raises what `prepare` and `PolicyOptimizer.apply` raise; the weights are then unchanged.
        """
        self._complete(task, passes)
        shards = self._shards
        self.drop()
        algorithm = self._spec.algorithm
        samples = sum(each.samples for each in shards)
        divisor = denominator(samples, sum(each.tokens for each in shards), algorithm.aggregation)
        passes.optimizer.reduce(passes.collective)
        passes.optimizer.scale(1.0 / divisor)
        own = LossSums()
        for each in shards:
            own.merge(each.sums)
        sums = reduce_sums(passes.collective, own)
        for name in DIVIDED:
            sums.sums[name] /= divisor
        rate = learning_rate(self._spec, task.key.iteration)
        norm = passes.optimizer.apply(rate, sums.sums["loss"])
        changed()
        metrics = update_metrics(self._spec, [sums], [norm]) | {"learning_rate": rate}
        fingerprint: dict[str, float | str] = {name: metrics[name] for name in TOLD if name in metrics}
        done = Updated(metrics, fingerprint | {"plan": plan_digest([each.plan for each in shards])})
        return done, {name: sum(each.read[name] for each in shards) for name in shards[0].read}

    def _agreed(self, task: BatchTask, collective: Collective) -> bool:
        """Returns True if all ranks have added the same shards, with which the task begins, or which begin with its own.

        A rank that was started anew, or has failed, has added none.
        """
        shared = list(zip(self._shards, task.shards, strict=False))
        fits = self._inputs == Inputs.of(task) and all(_is_same(each, shard, task) for each, shard in shared)
        count = float(len(self._shards)) if fits else 0.0
        most, least = collective.world.maximum(torch.tensor([count, -count])).tolist()
        return bool(most == -least and most > 0.0)

    def _complete(self, task: BatchTask, passes: Passes) -> None:
        """Has the gradients of exactly the task's shards added."""
        self.add(task, passes)
        if len(self._shards) > len(task.shards):
            self.drop()
            self.add(task, passes)
        if task.admission is not None:
            known = np.concatenate([each.ordinals for each in self._shards])
            require_admitted(task.admission, known)

    def _learnt(self, task: BatchTask, before: RewardMoments, passes: Passes) -> LearntShard:
        """Prepares a shard, and adds its gradients to those in the optimizer.

        task: names this shard alone.
        before: the moments of all rewards before it.
        """
        algorithm = self._spec.algorithm
        reader = BatchReader(self._spec, self._context)
        batch = reader.batch(task, passes.collective, passes.plans)
        preparation = passes.prepare(batch, task)
        plan = passes.plans.whole(batch)
        own = np.arange(len(batch), dtype=np.int64)
        if has_token_columns(self._spec):
            own = samples_of(plan, passes.collective.rank)
        learned = batch.learned
        lengths = counted_lengths(batch)
        weights = undivided_weights(lengths, algorithm.aggregation, self._spec.rollout.max_new_tokens)
        learner = PolicyLearner(
            spec=self._spec,
            forward=passes.forward,
            optimizer=passes.optimizer,
            collective=passes.collective,
            state=task.coefficients,
        )
        sums = learner.add(
            batch=batch,
            columns=placed_columns(batch, own, preparation.columns),
            step=plan,
            weights=np.where(learned, weights, 0.0),
            mean_weights=learned.astype(np.float64),
        )
        return LearntShard(
            shard=task.shards[0],
            ordinals=np.unique(batch.ordinals),
            admission=admission_within(task.admission, batch.ordinals),
            plan=plan,
            columns=preparation.columns,
            metrics=preparation.metrics,
            rows=len(batch),
            samples=int(np.count_nonzero(learned)),
            tokens=int(lengths[learned].sum()),
            moments=moments_after(before, batch),
            sums=sums,
            read=reader.finish(),
        )


def _is_same(learnt: LearntShard, shard: ShardRef, task: BatchTask) -> bool:
    return learnt.shard == shard and learnt.admission == admission_within(task.admission, learnt.ordinals)


def _metrics(shards: Sequence[LearntShard]) -> dict[str, float]:
    """Returns the metrics of the shards' preparation: means over all tokens or samples, and figures that all have."""
    found = {name: value for each in shards for name, value in each.metrics.items()}
    for name, numbers in (
        ("kl", [each.tokens for each in shards]),
        ("length/penalty_mean", [each.rows for each in shards]),
    ):
        if name in found:
            weighed = [each.metrics.get(name, 0.0) * number for each, number in zip(shards, numbers, strict=True)]
            found[name] = math.fsum(weighed) / max(sum(numbers), 1)
    return found
