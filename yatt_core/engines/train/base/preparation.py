"""`prepare`: computes what learning needs in addition to the experience, with the weights before the first step.

Consumes an iteration's batch, of which this rank holds the tokens of its part; produces `PreparedColumns`: advantages over
the whole batch, which every rank computes for itself, and log-probabilities under the old, the reference and the teachers'
weights, which each rank computes for its part of the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.algorithms.distillation import LikelyTokens, mixed_log_probs
from yatt_core.algorithms.kl.estimators import divergence
from yatt_core.algorithms.moments import scaled
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.roles.likely import TeacherReading, likely_tokens
from yatt_core.engines.train.roles.teacher import Teachers
from yatt_core.engines.train.steps.batch_advantages import (
    LENGTH_PART,
    BatchAdvantages,
    TokenValues,
    batch_advantages,
)
from yatt_core.engines.train.steps.coefficients import coefficient_metrics, kl_coefficient
from yatt_core.engines.train.steps.objective_learner import scored_tokens
from yatt_core.engines.train.steps.plan import PlanShape, StepPlan
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.steps.shared_columns import moved, samples_of, shared
from yatt_core.errors import DataError, NumericError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns, columns_of_table, encode_rank, read_prepared_table
from yatt_core.experience.table import sort_samples
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import Array, offsets_of, ragged_positions

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


UNLIKE_SAMPLES = "its samples do not match the experience"


def has_token_columns(spec: RunSpec) -> bool:
    """Returns True if `prepare` computes columns of tokens, so that each rank writes its own."""
    if spec.objective is not None:
        return spec.keeps_reference
    algorithm = spec.algorithm
    others = (algorithm.kl, algorithm.distillation)
    return spec.needs_old or spec.advantages_of_tokens or any(other is not None for other in others)


def read_columns(
    spec: RunSpec, run_folder: Path, batch: ExperienceBatch, prepared: PrepareReceipt
) -> tuple[PreparedColumns, int]:
    """Reads all prepared columns; checks that they match the batch's samples and contain what the spec needs.

    Returns the columns and the bytes read.
    """
    table, size = read_prepared_table(run_folder, prepared.folder, prepared.files)
    columns = columns_of_table(sort_samples(table))
    same = np.array_equal(columns.ordinals, batch.ordinals) and np.array_equal(columns.samples, batch.samples)
    if not same or not np.array_equal(columns.response_offsets, batch.response_offsets):
        raise DataError(f"{prepared.folder}: {UNLIKE_SAMPLES}")
    require_columns(spec, columns, prepared.folder)
    return columns, size


def require_columns(spec: RunSpec, columns: PreparedColumns, folder: str) -> None:
    """Raises `DataError` unless the columns contain what an update under the spec reads."""
    distillation = spec.algorithm.distillation
    likely = distillation is not None and distillation.top_k is not None
    needed = {
        "log_probs_old": (spec.objective is None and spec.needs_old, "several steps, or the entropy's method, need"),
        "log_probs_ref": (spec.scores_reference, "the loss or the reward needs"),
        "log_probs_teacher": (distillation is not None and distillation.top_k is None, "distillation needs"),
        **dict.fromkeys(("teacher_tokens", "teacher_log_probs"), (likely, "distillation.top_k needs")),
        "token_advantages": (spec.advantages_of_tokens, "advantages of tokens need"),
        **dict.fromkeys(("values", "returns"), (spec.critic is not None, "a critic needs")),
    }
    for name, (is_needed, what_for) in needed.items():
        if is_needed and getattr(columns, name) is None:
            raise DataError(f"{folder}: has no {name}, which {what_for}")


def collected_columns(spec: RunSpec, collective: Collective, columns: PreparedColumns) -> list[bytes]:
    """Returns the contents of all files of prepared columns on rank 0; nothing elsewhere.

    columns: of this rank's samples if there are token columns, otherwise of all.
    """
    files = collective.ranks if has_token_columns(spec) else 1
    return collective.collected(encode_rank(columns) if collective.rank < files else b"")[:files]


@dataclass(frozen=True, slots=True)
class Preparation:
    """The outcome of `prepare`.

    columns: prepared columns of this rank's samples if there are token columns, otherwise of all samples.
    """

    columns: PreparedColumns
    metrics: dict[str, float]


class Preparer:
    """Computes the prepared columns; every rank has an instance."""

    def __init__(
        self,
        spec: RunSpec,
        forward: TokenPasses,
        optimizer: PolicyOptimizer,
        collective: Collective,
        teachers: Teachers | None = None,
        critic: TokenPasses | None = None,
    ) -> None:
        """Initialises the preparer.

        critic: passes that return values.
        """
        self._spec = spec
        self._forward = forward
        self._optimizer = optimizer
        self._collective = collective
        self._teachers = teachers
        self._critic = critic

    def prepare(
        self,
        batch: ExperienceBatch,
        shape: PlanShape,
        reference: Any | None,
        task: BatchTask,
    ) -> Preparation:
        """Computes this rank's columns.

        shape: what shapes the plans of the passes.
        reference: weights of before an iteration, as copied by the optimizer, if there is a KL term, or if they teach.

        Raises `NumericError` for values that are not finite.
        """
        kl = self._spec.algorithm.kl
        needs_old = self._spec.needs_old
        in_reward = kl is not None and kl.where == "reward"
        plans = Plans(self._spec, shape)
        share = plans.whole(batch)
        old = self._scored(self._forward, batch, share) if needs_old or in_reward else None
        ref = None
        if reference is not None and self._spec.scores_reference:
            with self._optimizer.exchanged(reference):
                ref = self._scored(self._forward, batch, share)
        tokens: dict[str, Any] = {"log_probs_old": old if needs_old else None, "log_probs_ref": ref}
        if self._spec.algorithm.distillation is not None:
            with self._optimizer.exchanged(reference) if self._spec.algorithm.keeps_teacher else nullcontext():
                tokens |= self._taught(batch, plans, task.key.iteration, self._spec.algorithm.distillation.top_k)
        penalties = None
        if kl is not None and in_reward and old is not None and ref is not None:
            both = torch.from_numpy(old).double(), torch.from_numpy(ref).double()
            penalties = divergence(kl.formula, *both).numpy()
        found, of_critic, metrics = self._advantages(batch, share, penalties, task)
        if found.tokens is not None:
            tokens["token_advantages"] = found.tokens
        if of_critic is not None:
            tokens |= {"values": of_critic, "returns": found.returns}
        values = found.samples
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise NumericError(f"advantage {values[row]} of prompt ordinal {batch.ordinals[row]} is not finite")
        mine = np.arange(len(batch), dtype=np.int64)
        if has_token_columns(self._spec):
            mine = samples_of(share, self._collective.rank)
        return Preparation(columns_of(batch, mine, values, tokens), metrics)

    def _taught(self, batch: ExperienceBatch, plans: Plans, iteration: int, likely: int | None) -> dict[str, Any]:
        """Returns the columns of this rank's tokens that the teachers of an iteration make.

        likely: number of likeliest tokens at each position; None for the log-probabilities of the sampled tokens.
        """
        if likely is None:
            return {"log_probs_teacher": self._log_probs_taught(batch, plans, iteration)}
        found = self._likely(batch, plans, iteration, likely)
        return {"teacher_tokens": found.tokens, "teacher_log_probs": found.log_probs}

    def _log_probs_taught(self, batch: ExperienceBatch, plans: Plans, iteration: int) -> Float32:
        """Returns the log-probabilities of this rank's tokens under the teachers of an iteration, [T]."""
        share = plans.whole(batch)
        if self._teachers is None:
            shown = batch.shown_to_teacher()
            by_teacher = plans.whole(shown)
            own = self._scored(self._forward, shown, by_teacher)
            return self._moved(batch, by_teacher, share, own)
        found = []
        weights = []
        highest = self._highest(batch)
        for teacher, weight in self._teachers.of(iteration):
            teacher.require_known(highest)
            found.append(self._scored(teacher.passes, batch, share))
            weights.append(weight)
        return mixed_log_probs(found, weights)

    def _likely(self, batch: ExperienceBatch, plans: Plans, iteration: int, count: int) -> LikelyTokens:
        """Returns the likeliest tokens of an iteration's teachers at this rank's tokens. Arguments as for `_taught`.

        count: number of likeliest tokens at each position.
        """
        below = self._forward.vocabulary
        share = plans.whole(batch)
        if self._teachers is None:
            shown = batch.shown_to_teacher()
            by_teacher = plans.whole(shown)
            own = likely_tokens(
                [(self._forward, 1.0)],
                TeacherReading(batch=shown, share=by_teacher, collective=self._collective, count=count, below=below),
            )
            tokens = self._moved(batch, by_teacher, share, own.tokens)
            return LikelyTokens(tokens, self._moved(batch, by_teacher, share, own.log_probs))
        teachers = self._teachers.of(iteration)
        highest = self._highest(batch)
        for teacher, _ in teachers:
            teacher.require_known(highest)
        reading = TeacherReading(batch=batch, share=share, collective=self._collective, count=count, below=below)
        return likely_tokens([(teacher.passes, weight) for teacher, weight in teachers], reading)

    def _advantages(
        self, batch: ExperienceBatch, share: StepPlan, divergences: Float64 | None, task: BatchTask
    ) -> tuple[BatchAdvantages, Float32 | None, dict[str, float]]:
        """Computes the batch's advantages, the critic's values of all tokens if there is one, and metrics.

        divergences: KL divergences of this rank's tokens, [T]; None unless the reward has a KL term.
        """
        algorithm = self._spec.algorithm
        rewards, metrics = scaled(batch.rewards, task.reward_moments, algorithm.reward_scaling, algorithm.epsilon)
        if algorithm.length_penalty is not None and len(batch):
            metrics["length/penalty_mean"] = -float(batch.reward_parts[LENGTH_PART].mean())
        metrics |= coefficient_metrics(algorithm, task.coefficients)
        penalties = None
        values = None
        coefficient = kl_coefficient(algorithm, task.coefficients)
        if algorithm.kl is not None and divergences is not None:
            if self._spec.advantages_of_tokens:
                divergences = shared(self._collective, share, batch.response_offsets, divergences)
                penalties = coefficient * divergences
            else:
                divergences = self._of_samples(batch, share, divergences)
                rewards = rewards - coefficient * divergences
            if tokens := np.count_nonzero(batch.loss_mask):
                metrics["kl"] = float(divergences.sum() / tokens)
        if self._critic is not None:
            own = self._scored(self._critic, batch, share)
            values = shared(self._collective, share, batch.response_offsets, own)
        branch = task.key.branch
        iteration = task.key.iteration
        found = batch_advantages(
            spec=self._spec,
            batch=batch,
            rewards=rewards,
            branch=branch,
            iteration=iteration,
            columns=TokenValues(penalties, values),
        )
        if found.explained_variance is not None:
            metrics["explained_variance"] = found.explained_variance
        return found, values, metrics

    def _moved(self, batch: ExperienceBatch, plan: StepPlan, to: StepPlan, tokens: Array) -> Array:
        """Returns a column of tokens that was computed on the parts of one plan for this rank's part of another."""
        return moved(self._collective, plan=plan, to=to, offsets=batch.response_offsets, values=tokens)

    def _highest(self, batch: ExperienceBatch) -> int:
        """Returns the highest token of the batch, of which this rank may hold a part."""
        own = max(int(tokens.max(initial=-1)) for tokens in (batch.prompt_tokens, batch.response_tokens))
        return int(self._collective.world.maximum(torch.tensor(own)))

    def _scored(self, passes: TokenPasses, batch: ExperienceBatch, share: StepPlan) -> Float32:
        return scored_tokens(passes, batch, share, self._collective)

    def _of_samples(self, batch: ExperienceBatch, share: StepPlan, tokens: Float64) -> Float64:
        """Returns the sum of a column of this rank's tokens over each sample's, [N], on every rank."""
        sums = np.zeros(len(batch))
        for indices in share.parts[self._collective.rank]:
            for sample in indices.tolist():
                start, stop = batch.response_offsets[sample : sample + 2]
                sums[sample] = tokens[start:stop].sum()
        return shared(self._collective, share, np.arange(len(batch) + 1), sums)


def columns_of(batch: ExperienceBatch, samples: Int64, values: Float64, tokens: Mapping[str, Any]) -> PreparedColumns:
    """Builds the columns of some samples.

    tokens: token columns by name: [T] or [T, numbers] over the whole batch, or None.
    """
    positions = ragged_positions(batch.response_offsets, samples)
    return PreparedColumns(
        ordinals=batch.ordinals[samples],
        samples=batch.samples[samples],
        advantages=values[samples],
        response_offsets=offsets_of(batch.response_lengths[samples]),
        **{name: None if column is None else column[positions] for name, column in tokens.items()},
    )
