"""One optimizer step over the ranks: gradients and metric sums of a step's samples, summed in a fixed order.

Consumes a batch, the columns that `prepare` added, and the step's plan. Leaves the step's gradients in the
optimizer and produces the sums for the metrics, with the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.algorithms.aggregation import token_weights
from yatt_core.algorithms.distillation import bucket_divergence, with_tail
from yatt_core.algorithms.tokens import Responses
from yatt_core.engines.train.model.forward import DistributionLoss, MicroBatch, assemble
from yatt_core.engines.train.model.head_values import EntropyUse
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.sequences import counted_lengths
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.objective import MAXIMUM_NAMES, NO_STATE, SUM_NAMES, LossSums, TokenInputs, objective
from yatt_core.engines.train.steps.plan import StepPlan, seeded_permutation
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import ragged_positions

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


SMALLEST_SQUARE = 1e-300
"""Keeps the effective sample size at 0 where every weight is 0."""


class PolicyLearner:
    """Computes a step's gradients; the caller applies them."""

    def __init__(
        self,
        spec: RunSpec,
        forward: TokenPasses,
        optimizer: PolicyOptimizer,
        collective: Collective,
        state: Mapping[str, float] = NO_STATE,
    ) -> None:
        """Initialises the learner.

        state: coefficients in the control state.
        """
        self._spec = spec
        self._state = state
        self._forward = forward
        self._optimizer = optimizer
        self._collective = collective
        self._kl_in_loss = spec.algorithm.kl is not None and spec.algorithm.kl.where == "loss"

    def gradients(self, batch: ExperienceBatch, columns: PreparedColumns, step: StepPlan, *seeds: int) -> LossSums:
        """Leaves the summed gradients of the step in the optimizer; returns its sums over all ranks.

        seeds: of the step's random choices.
        """
        learned = step.samples[batch.learned[step.samples]]
        lengths = counted_lengths(batch)[learned]
        longest = self._spec.rollout.max_new_tokens
        weights = np.zeros(len(batch))
        weights[learned] = token_weights(lengths, self._spec.algorithm.aggregation, longest)
        mean_weights = np.zeros(len(batch))
        mean_weights[learned] = token_weights(lengths, "token_mean", longest)
        self._optimizer.zero()
        sums = self.add(
            batch=batch,
            columns=columns,
            step=step,
            weights=weights,
            mean_weights=mean_weights,
            frozen=self._frozen(batch, columns, learned, *seeds),
        )
        self._optimizer.reduce(self._collective)
        return reduce_sums(self._collective, sums)

    def add(
        self,
        batch: ExperienceBatch,
        columns: PreparedColumns,
        step: StepPlan,
        weights: Float64,
        mean_weights: Float64,
        frozen: Bool | None = None,
    ) -> LossSums:
        """Adds the gradients of this rank's part of a step to those in the optimizer; returns the sums of that part.

        weights, mean_weights: [N], as in `TokenInputs`.
        frozen: [T], which tokens get no gradient; None if all do.
        """
        sums = LossSums()

        def loss(micro_batch: MicroBatch, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
            inputs = self._inputs(
                micro_batch=micro_batch,
                batch=batch,
                columns=columns,
                weights=weights,
                mean_weights=mean_weights,
                frozen=frozen,
                device=log_probs.device,
            )
            value, found = objective(
                spec=self._spec.algorithm, log_probs=log_probs, entropies=entropies, inputs=inputs, state=self._state
            )
            sums.merge(found)
            return value

        micro_batches = [assemble(batch, indices, step.packed) for indices in step.parts[self._collective.rank]]
        entropy: EntropyUse = "loss" if self._spec.algorithm.entropy_in_loss else "metric"
        whole = self._spec.algorithm.whole_responses
        taught = self._taught(columns, weights, sums)
        self._forward.backward(micro_batches, loss, entropy, whole=whole, taught=taught)
        return sums

    def _taught(self, columns: PreparedColumns, weights: Float64, sums: LossSums) -> DistributionLoss | None:
        """Returns the loss towards the teachers' likeliest tokens; None without them.

        weights: [N], as the samples' tokens are weighted in the loss.
        sums: the loss's value and the divergence are added to it.
        """
        distillation = self._spec.algorithm.distillation
        tokens = columns.teacher_tokens
        log_probs = columns.teacher_log_probs
        if distillation is None or distillation.top_k is None or tokens is None or log_probs is None:
            return None
        coefficient = distillation.coefficient

        def taught(part: MicroBatch, distribution: torch.Tensor) -> torch.Tensor:
            device = distribution.device
            listed = torch.from_numpy(tokens[part.positions].astype(np.int64)).to(device)
            teacher = _tensor(log_probs[part.positions], device)
            divergence = bucket_divergence(with_tail(distribution, listed), teacher)
            value = coefficient * (divergence * _tensor(weights[part.rows], device)).sum()
            total, loss = torch.stack([divergence.detach().double().sum(), value.detach().double()]).tolist()
            sums.merge(LossSums({"distillation_kl": total, "loss": loss}))
            return value

        return taught

    def _inputs(
        self,
        micro_batch: MicroBatch,
        batch: ExperienceBatch,
        columns: PreparedColumns,
        weights: Float64,
        mean_weights: Float64,
        frozen: Bool | None,
        device: torch.device,
    ) -> TokenInputs:
        old = columns.log_probs_old
        reference = columns.log_probs_ref if self._kl_in_loss else None
        teacher = columns.log_probs_teacher
        advantages = _advantages(columns, micro_batch.rows, micro_batch.positions)
        return TokenInputs(
            advantages=_tensor(advantages, device),
            weights=_tensor(weights[micro_batch.rows], device),
            mean_weights=_tensor(mean_weights[micro_batch.rows], device),
            sampler=_tensor(batch.log_probs_sampler[micro_batch.positions], device),
            old=None if old is None else _tensor(old[micro_batch.positions], device),
            reference=None if reference is None else _tensor(reference[micro_batch.positions], device),
            teacher=None if teacher is None else _tensor(teacher[micro_batch.positions], device),
            responses=responses_of(micro_batch.rows, device) if self._spec.algorithm.whole_responses else None,
            frozen=None if frozen is None else torch.from_numpy(frozen[micro_batch.positions]).to(device),
        )

    def _frozen(self, batch: ExperienceBatch, columns: PreparedColumns, samples: Int64, *seeds: int) -> Bool | None:
        """Returns which tokens get no gradient in a step with these samples, [T]; None if all do."""
        method = self._spec.algorithm.entropy
        if method is None or not method.freezes or columns.log_probs_old is None:
            return None
        mask = np.zeros(len(batch.response_tokens), dtype=np.bool_)
        positions = ragged_positions(batch.response_offsets, samples)
        rows = np.repeat(samples, batch.response_lengths[samples])
        counted = batch.loss_mask[positions]
        rows = rows[counted]
        positions = positions[counted]
        log_probs = torch.from_numpy(columns.log_probs_old[positions].astype(np.float64))
        advantages = torch.from_numpy(_advantages(columns, rows, positions).astype(np.float64))
        order = torch.from_numpy(seeded_permutation(len(positions), "frozen_tokens", *seeds))
        mask[positions] = method.frozen(log_probs, advantages, order).numpy()
        return mask


def reduce_sums(collective: Collective, sums: LossSums) -> LossSums:
    """Computes sums and maxima over the ranks, in float64."""
    added = torch.tensor([sums.sums.get(name, 0.0) for name in SUM_NAMES], dtype=torch.float64)
    largest = torch.tensor([sums.maxima.get(name, -torch.inf) for name in MAXIMUM_NAMES], dtype=torch.float64)
    return LossSums(
        dict(zip(SUM_NAMES, collective.sum(added).tolist(), strict=True)),
        dict(zip(MAXIMUM_NAMES, collective.maximum(largest).tolist(), strict=True)),
    )


def update_metrics(spec: RunSpec, steps: Sequence[LossSums], norms: Sequence[float]) -> dict[str, float]:
    """Returns metrics of class result: means over steps (losses, gradient norm), means over tokens, and extremes.

    A step without a gradient, which is not taken, counts in `update/empty_steps`. An update without tokens has neither
    means over tokens nor extremes: it measured none.
    """
    total = LossSums()
    for sums in steps:
        total.merge(sums)
    tokens = total.sums["tokens"]
    metrics = {
        "loss": total.sums["loss"] / len(steps),
        "policy_loss": total.sums["policy_loss"] / len(steps),
        "grad_norm": sum(norms) / len(norms),
        "update/empty_steps": float(norms.count(0.0)),
        "log_ratios_clamped": total.sums["clamped"],
        "tokens": tokens,
    }
    if not tokens:
        return metrics
    metrics |= {
        "entropy": total.sums["entropy"] / tokens,
        "clip_fraction": total.sums["clipped"] / tokens,
        "train_rollout_logprob_diff_mean": total.sums["gap"] / tokens,
        **_extremes(total.maxima),
    }
    if spec.algorithm.kl is not None and spec.algorithm.kl.where == "loss":
        metrics["kl"] = total.sums["kl"] / tokens
    if spec.algorithm.distillation is not None:
        metrics["distillation_kl"] = total.sums["distillation_kl"] / tokens
    if spec.algorithm.importance_correction is not None:
        metrics |= _importance(total.sums)
    if spec.algorithm.off_policy_mask is not None:
        metrics["off_policy_masked_fraction"] = total.sums["off_policy_masked"] / tokens
    if spec.algorithm.needs_old:
        metrics["frozen_fraction"] = total.sums["frozen"] / tokens
    return metrics


def _importance(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns the mean weight, the effective sample size (sum w)^2 / (n sum w^2), and the fractions masked and capped."""
    units = max(sums["importance_units"], 1.0)
    weight = sums["importance_weight"]
    return {
        "importance_weight": weight / units,
        "importance_sample_size": weight * weight / (units * max(sums["importance_squared"], SMALLEST_SQUARE)),
        "importance_masked_fraction": sums["importance_masked"] / units,
        "importance_capped_fraction": sums["importance_capped"] / units,
    }


def _extremes(maxima: Mapping[str, float]) -> dict[str, float]:
    return {
        "ratio_max": maxima["ratio"],
        "ratio_min": -maxima["negative_ratio"],
        "train_rollout_logprob_diff_max": maxima["gap"],
    }


def _advantages(columns: PreparedColumns, rows: Int64, positions: Int64) -> npt.NDArray[np.floating]:
    """Returns the advantages of tokens. rows: [T], each token's sample. positions: [T], its place in the batch."""
    return columns.advantages[rows] if columns.token_advantages is None else columns.token_advantages[positions]


def responses_of(rows: Int64, device: torch.device) -> Responses:
    """Returns the responses of tokens. rows: [T], each token's sample; a sample's tokens are adjacent."""
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    lengths = np.diff(begins, append=len(rows))
    columns = np.arange(len(rows)) - np.repeat(begins, lengths)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    return Responses(
        torch.from_numpy(numbers).to(device),
        torch.from_numpy(columns).to(device),
        len(lengths),
        int(lengths.max(initial=0)),
    )


def _tensor(values: npt.NDArray[np.floating], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32, copy=False)).to(device)
