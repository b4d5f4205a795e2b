"""One optimizer step of an objective over the ranks: the gradients of a loss that is a function of responses' scores.

Consumes a batch, the reference's log-probabilities that `prepare` recorded, and the step's plan. Leaves the step's
gradients in the optimizer and produces the sums for the metrics, with the same bits on every rank.

A loss couples the tokens of a response, and the responses of a group, which may be on any rank and in any micro-batch. The
responses are therefore scored first, without gradients; the loss and its gradient with respect to the scores are computed
on every rank; the backward pass then weights each token's log-probability with the gradient of its response's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.train.model.forward import MicroBatch, assemble
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.sequences import counted_lengths
from yatt_core.engines.train.objectives.scores import Objective, Scores
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.groups import SampleGroups, groups_of
from yatt_core.engines.train.steps.plan import PlanShape, StepPlan
from yatt_core.engines.train.steps.plans import backward_plan
from yatt_core.experience.batch import ExperienceBatch

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ObjectiveSums:
    """The sums of a step, over all ranks.

    loss: the step's loss.
    groups: number of groups with a preference or a label.
    agreed: the groups with which the model agrees; one of which it has no opinion counts half.
    margin: sum of the groups' margins.
    tokens: counted tokens of the step's responses.
    responses: of objectives that compare pairs: sums over the groups of what is known of the chosen and of the rejected
        response, by name.
    """

    loss: float
    groups: int
    agreed: float
    margin: float
    tokens: float
    responses: Mapping[str, float] = field(default_factory=dict)


class ObjectiveLearner:
    """Computes a step's gradients; the caller applies them."""

    def __init__(
        self,
        objective: Objective,
        forward: TokenPasses,
        optimizer: PolicyOptimizer,
        collective: Collective,
        shape: PlanShape,
    ) -> None:
        self._objective = objective
        self._forward = forward
        self._optimizer = optimizer
        self._collective = collective
        self._shape = shape

    def gradients(self, batch: ExperienceBatch, reference: Float32 | None, step: StepPlan) -> ObjectiveSums:
        """Leaves the summed gradients of the step in the optimizer; returns its sums over all ranks.

        reference: log-probabilities of the batch's response tokens under the reference's weights, [T]; None for an
            objective without a reference.
        """
        groups = groups_of(batch, self._objective.labelled).within(step.samples)
        linear = self._objective.linear
        found = np.zeros(len(batch))
        scored = found if linear else self.scores(batch, step)
        slopes = self._slopes(self._of(batch, groups, scored, reference))

        def loss(micro_batch: MicroBatch, log_probs: torch.Tensor, _entropies: torch.Tensor) -> torch.Tensor:
            if linear:
                np.add.at(found, micro_batch.rows, log_probs.detach().double().cpu().numpy())
            return (log_probs * torch.from_numpy(slopes[micro_batch.rows]).to(log_probs)).sum()

        self._optimizer.zero()
        learned = backward_plan(self._shape, batch, step, self._objective.labelled)
        micro_batches = [assemble(batch, indices, step.packed) for indices in learned.parts[self._collective.rank]]
        self._forward.backward(micro_batches, loss)
        self._optimizer.reduce(self._collective)
        if linear:
            scored = everywhere(self._collective, found)
        return self.sums(batch, groups, scored, reference)

    def scores(self, batch: ExperienceBatch, step: StepPlan) -> Float64:
        """Returns the scores of a step's samples under the current weights, [N] on every rank; 0 for other samples."""
        tokens = scored_tokens(self._forward, batch, step, self._collective)
        return everywhere(self._collective, sums_of(batch, tokens))

    def sums(
        self, batch: ExperienceBatch, groups: SampleGroups, scored: Float64, reference: Float32 | None
    ) -> ObjectiveSums:
        """Returns the sums of some groups for scores, [N]."""
        scores = self._of(batch, groups, scored, reference)
        loss = float(self._objective.loss(scores))
        margins = self._objective.margins(scores)
        agreed = float((margins > 0).sum()) + 0.5 * float((margins == 0).sum())
        tokens = float(scores.tokens[scores.first].sum())
        if not self._objective.labelled and len(groups.second):
            tokens += float(scores.tokens[scores.second].sum())
        return ObjectiveSums(
            loss=loss,
            groups=len(margins),
            agreed=agreed,
            margin=float(margins.sum()),
            tokens=tokens,
            responses=self._of_responses(scores),
        )

    def _of_responses(self, scores: Scores) -> dict[str, float]:
        """Returns the sums of the rewards of the chosen and the rejected responses, and of their log-probabilities."""
        rewards = self._objective.rewards(scores)
        if rewards is None:
            return {}
        known = {"reward": rewards} if self._objective.scalar else {"reward": rewards, "log_prob": scores.policy}
        sides = {"chosen": scores.first, "rejected": scores.second}
        return {
            f"{side}_{name}": float(values[rows].detach().sum())
            for side, rows in sides.items()
            for name, values in known.items()
        }

    def _of(self, batch: ExperienceBatch, groups: SampleGroups, scored: Float64, reference: Float32 | None) -> Scores:
        return Scores(
            policy=torch.from_numpy(scored.copy()),
            reference=torch.from_numpy(np.zeros(len(batch)) if reference is None else sums_of(batch, reference)),
            tokens=torch.from_numpy(counted_lengths(batch).astype(np.float64)),
            first=torch.from_numpy(groups.first),
            second=torch.from_numpy(groups.second),
            desirable=torch.from_numpy(groups.desirable),
        )

    def _slopes(self, scores: Scores) -> Float64:
        """Returns the gradient of the loss with respect to the scores, [N]."""
        policy = scores.policy.requires_grad_()
        (gradient,) = torch.autograd.grad(self._objective.loss(scores), policy)
        slopes: Float64 = gradient.numpy()
        return slopes


def scored_tokens(passes: TokenPasses, batch: ExperienceBatch, plan: StepPlan, collective: Collective) -> Float32:
    """Returns the passes' values of this rank's counted response tokens, [T]; 0 elsewhere."""
    values = np.zeros(len(batch.response_tokens), dtype=np.float32)
    micro_batches = [assemble(batch, indices, plan.packed) for indices in plan.parts[collective.rank]]
    for micro_batch, found in zip(micro_batches, passes.score(micro_batches), strict=True):
        values[micro_batch.positions] = found
    return values


def sums_of(batch: ExperienceBatch, tokens: Float32) -> Float64:
    """Returns the sum of each response's counted tokens, [N].

    tokens: values of the batch's response tokens, [T].
    """
    rows = np.repeat(np.arange(len(batch)), batch.response_lengths)[batch.loss_mask]
    counted = tokens[batch.loss_mask].astype(np.float64)
    return np.bincount(rows, weights=counted, minlength=len(batch)).astype(np.float64)


def everywhere(collective: Collective, values: Float64) -> Float64:
    """Returns the values of all ranks, [N], on every rank.

    Each entry is non-zero on one rank only, so that the sum is exact.
    """
    total: Float64 = collective.sum(torch.from_numpy(values)).numpy()
    return total


def objective_metrics(steps: Sequence[ObjectiveSums], norms: Sequence[float]) -> dict[str, float]:
    """Returns metrics of class result: means over the steps, or over the groups."""
    metrics = {
        "loss": sum(step.loss for step in steps) / len(steps),
        "grad_norm": sum(norms) / len(norms),
        "update/empty_steps": float(norms.count(0.0)),
        "tokens": sum(step.tokens for step in steps),
    }
    return metrics | preference_metrics(steps)


def preference_metrics(steps: Sequence[ObjectiveSums]) -> dict[str, float]:
    """Returns agreement and margin, and the means of the chosen and of the rejected responses of pairs.

    Nothing without groups that have a preference or a label.
    """
    groups = sum(step.groups for step in steps)
    if not groups:
        return {}
    means = {
        "accuracy": sum(step.agreed for step in steps) / groups,
        "margin": sum(step.margin for step in steps) / groups,
    }
    means |= {name: sum(step.responses.get(name, 0.0) for step in steps) / groups for name in steps[0].responses}
    return {f"preference/{name}": value for name, value in means.items()}
