"""The steps of an update: an iteration's optimizer steps over its batch, for the policy and the critic.

Consumes a batch, the columns that `prepare` added, and the plan's shape; changes the weights, and produces
the update's metrics and fingerprint. An update is a function of the weights, the log and the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.roles.critic import Critic, value_metrics
from yatt_core.engines.train.steps.learner import PolicyLearner, update_metrics
from yatt_core.engines.train.steps.plan import plan_digest
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.steps.schedule import learning_rate_factor
from yatt_core.errors import AlignmentError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.keys import WorkKey
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import ragged_positions

TOLD = ("loss", "grad_norm", "value_loss", "value_grad_norm")
"""Metrics that are part of the fingerprint."""


@dataclass(frozen=True, slots=True)
class Updated:
    """The outcome of an update.

    fingerprint: without digests of weights.
    """

    metrics: dict[str, float]
    fingerprint: dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer steps of an iteration, independent of how the models run.

    critic: None if the spec has none.
    """

    spec: RunSpec
    plans: Plans
    forward: TokenPasses
    optimizer: PolicyOptimizer
    collective: Collective
    critic: Critic | None

    def take(
        self,
        key: WorkKey,
        batch: ExperienceBatch,
        columns: PreparedColumns,
        state: Mapping[str, float],
        changed: Callable[[], None],
    ) -> Updated:
        """Takes the steps.

        state: coefficients in the control state.
        changed: called after each step.

        All gradients of a step are computed before it is taken, so a loss that is not finite raises
        `NumericError` with the step not taken. The same holds for the policy's gradient norm; the critic's norm is
        only computed after the policy's step. In an aligned run, log-probabilities that differ from the sampler's raise
        `AlignmentError` before the first step, whichever step learns from them.
        """
        steps = self.plans.steps(batch, key)
        old = columns.log_probs_old
        if self.spec.aligned and old is not None:
            samples = [part for step in steps for part in step.parts[self.collective.rank]]
            gap = gap_of(batch, old, np.concatenate([np.zeros(0, np.int64), *samples]))
            require_no_gap(float(self.collective.maximum(torch.tensor(gap, dtype=torch.float64))), key)
        rate = learning_rate(self.spec, key.iteration)
        learner = PolicyLearner(
            spec=self.spec, forward=self.forward, optimizer=self.optimizer, collective=self.collective, state=state
        )
        critic = self.critic
        alone = self.critic is not None and self.critic.learns_alone(key.iteration)
        sums = []
        norms = []
        values = []
        value_norms = []
        for number, step in enumerate(steps):
            if not alone:
                sums.append(learner.gradients(batch, columns, step, self.spec.seed, key.branch, key.iteration, number))
            if critic is not None:
                values.append(critic.gradients(self.collective, batch, columns, step))
            if not alone:
                if self.spec.aligned and old is None:  # so that there is one step, which learns from all samples
                    require_no_gap(sums[-1].maxima.get("gap", 0.0), key)
                norms.append(self.optimizer.apply(rate, sums[-1].sums["loss"]))
                changed()
            if critic is not None:
                value_norms.append(critic.apply(values[-1]))
                changed()
        metrics = {"tokens": float(sum(step.tokens for step in values))} if alone else {}
        if not alone:
            metrics = update_metrics(self.spec, sums, norms) | {"learning_rate": rate}
        if critic is not None:
            metrics |= value_metrics(values, value_norms)
        fingerprint: dict[str, float | str] = {name: metrics[name] for name in TOLD if name in metrics}
        return Updated(metrics, fingerprint | {"plan": plan_digest(steps)})


def gap_of(batch: ExperienceBatch, old: npt.NDArray[np.float32], samples: npt.NDArray[np.int64]) -> float:
    """Returns the largest difference between log-probabilities before the update and the sampler's; 0 without tokens.

    old: before the update, [T].
    samples: whose counted tokens are compared. Values that are not numbers are left to the loss, which refuses them.
    """
    positions = ragged_positions(batch.response_offsets, samples)
    counted = positions[batch.loss_mask[positions]]
    sampler = batch.log_probs_sampler[counted]
    differing = old[counted] != sampler
    gaps = np.abs(old[counted][differing] - sampler[differing])
    return float(np.fmax.reduce(gaps, initial=0.0))


def require_no_gap(gap: float, key: WorkKey) -> None:
    """Raises `AlignmentError` if a log-probability before the update differs from the sampler's by as little as a bit.

    gap: the largest difference, over all ranks.
    """
    if gap > 0.0:
        raise AlignmentError(
            f"iteration {key.iteration}: log-probabilities of the trainer differ from the sampler's by up to {gap:.3g}, but "
            "exact: aligned needs 0; nothing was learnt from them. Weights or processors of the two differ, or this processor's "
            "library adds in another order for other sizes; expected exact: true, auto or false"
        )


def learning_rate(spec: RunSpec, iteration: int) -> float:
    """Returns the learning rate of an iteration, counted from 1; iteration 0 has the same rate as iteration 1."""
    trainer = spec.trainer
    return trainer.optimizer.learning_rate * learning_rate_factor(trainer.schedule, max(iteration, 1), spec.iterations)
