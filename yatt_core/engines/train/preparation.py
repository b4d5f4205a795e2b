"""`prepare`: what learning needs besides the experience, computed with the weights before the first step.

Consumes an iteration's batch; produces `PreparedColumns`: advantages over the whole batch, which every rank computes for
itself, and log-probabilities under the old and the reference weights, each rank for its share of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.algorithms.moments import scaled
from yatt_core.data.batch import ExperienceBatch
from yatt_core.data.columns import offsets_of, ragged_positions
from yatt_core.data.prepared import PreparedColumns
from yatt_core.engines.train.batch_advantages import batch_advantages
from yatt_core.engines.train.collective import Collective
from yatt_core.engines.train.forward import assemble
from yatt_core.engines.train.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.plan import StepPlan, plan_step
from yatt_core.errors import NumericError
from yatt_core.receipts import BatchTask
from yatt_core.spec.run import RunSpec

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def has_token_columns(spec: RunSpec) -> bool:
    """True when `prepare` computes log-probabilities to be kept, so that each rank has tokens of its own to write."""
    return spec.optimizer_steps_per_iteration > 1 or spec.algorithm.kl is not None


@dataclass(frozen=True, slots=True)
class Preparation:
    """What came of it. columns: of this rank's samples where there are token columns, else of all."""

    columns: PreparedColumns
    metrics: dict[str, float]


class Preparer:
    """Computes the prepared columns; every rank runs one."""

    def __init__(self, spec: RunSpec, forward: TokenPasses, optimizer: PolicyOptimizer, collective: Collective) -> None:
        self._spec, self._forward, self._optimizer, self._collective = spec, forward, optimizer, collective

    def prepare(
        self,
        batch: ExperienceBatch,
        budget: int,
        packed: bool,
        reference: Any | None,
        task: BatchTask,
        even: bool = False,
    ) -> Preparation:
        """reference: weights of iteration 0, as the optimizer copies them, with a KL term. even: as in a `PlanShape`.

        Raises `NumericError` for values that are not finite.
        """
        kl, several_steps = self._spec.algorithm.kl, self._spec.optimizer_steps_per_iteration > 1
        in_reward = kl is not None and kl.where == "reward"
        everything = np.arange(len(batch), dtype=np.int64)
        share = plan_step(batch.lengths, everything, self._collective.ranks, budget, packed, even)
        old = self._log_probs(batch, share) if several_steps or in_reward else None
        ref = None
        if reference is not None:
            with self._optimizer.exchanged(reference):
                ref = self._log_probs(batch, share)
        algorithm = self._spec.algorithm
        rewards, metrics = scaled(batch.rewards, task.reward_moments, algorithm.reward_scaling, algorithm.epsilon)
        if kl is not None and in_reward and old is not None and ref is not None:
            divergence = self._divergence(batch, share, old, ref)
            rewards = rewards - kl.coefficient * divergence
            metrics["kl"] = float(divergence.sum() / max(np.count_nonzero(batch.loss_mask), 1))
        values = batch_advantages(self._spec, batch, rewards, task.key.branch, task.key.iteration)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise NumericError(f"advantage {values[row]} of prompt ordinal {batch.ordinals[row]} is not finite")
        mine = np.arange(len(batch), dtype=np.int64)
        if has_token_columns(self._spec):
            parts = share.parts[self._collective.rank]
            mine = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
        return Preparation(_columns(batch, mine, values, old if several_steps else None, ref), metrics)

    def _log_probs(self, batch: ExperienceBatch, share: StepPlan) -> Float32:
        """Log-probabilities of this rank's counted response tokens, [T]; 0 elsewhere."""
        values = np.zeros(len(batch.response_tokens), dtype=np.float32)
        micro_batches = [assemble(batch, indices, share.packed) for indices in share.parts[self._collective.rank]]
        for micro_batch, log_probs in zip(micro_batches, self._forward.score(micro_batches), strict=True):
            values[micro_batch.positions] = log_probs
        return values

    def _divergence(self, batch: ExperienceBatch, share: StepPlan, old: Float32, reference: Float32) -> Float64:
        """sum_t (old - reference) of each sample, [N]; an entry is non-zero on one rank, so that adding up is exact."""
        sums = np.zeros(len(batch))
        differences = old.astype(np.float64) - reference.astype(np.float64)
        for indices in share.parts[self._collective.rank]:
            for sample in indices.tolist():
                start, stop = batch.response_offsets[sample : sample + 2]
                sums[sample] = differences[start:stop].sum()
        total: Float64 = self._collective.sum(torch.from_numpy(sums)).numpy()
        return total


def _columns(
    batch: ExperienceBatch, samples: Int64, values: Float64, old: Float32 | None, reference: Float32 | None
) -> PreparedColumns:
    positions = ragged_positions(batch.response_offsets, samples)
    return PreparedColumns(
        ordinals=batch.ordinals[samples],
        samples=batch.samples[samples],
        advantages=values[samples],
        response_offsets=offsets_of(batch.response_lengths[samples]),
        log_probs_old=None if old is None else old[positions],
        log_probs_ref=None if reference is None else reference[positions],
    )
