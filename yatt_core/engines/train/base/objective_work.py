"""The work of an iteration with an objective: reference log-probabilities, optimizer steps, and held-out scores.

Consumes a batch of groups, and the reference's weights if the objective needs them; produces prepared columns, the update's
metrics and fingerprint, and the metrics of an evaluation. Does not know which objective it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.engines.train.base.preparation import Preparation, columns_of
from yatt_core.engines.train.base.updating import Updated, learning_rate
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.objectives.registry import objective_of
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.groups import groups_of
from yatt_core.engines.train.steps.objective_learner import (
    ObjectiveLearner,
    objective_metrics,
    preference_metrics,
    scored_tokens,
)
from yatt_core.engines.train.steps.plan import StepPlan, plan_digest
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.steps.shared_columns import samples_of, shared
from yatt_core.errors import ConfigurationError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.keys import WorkKey

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows, and the log-probabilities of all their response tokens under the reference's weights, if there are any."""

    batch: ExperienceBatch
    reference: Float32 | None


class ObjectiveWork:
    """The work of one rank; every rank must make the same calls."""

    def __init__(
        self,
        plans: Plans,
        forward: TokenPasses,
        optimizer: PolicyOptimizer,
        collective: Collective,
    ) -> None:
        spec = plans.spec
        if spec.objective is None:
            raise ConfigurationError("objective: missing from the spec")
        self._spec = spec
        self._plans = plans
        self._forward = forward
        self._optimizer = optimizer
        self._collective = collective
        self._objective = objective_of(spec.objective)
        self._learner = ObjectiveLearner(
            objective=self._objective, forward=forward, optimizer=optimizer, collective=collective, shape=plans.shape
        )

    def prepare(self, batch: ExperienceBatch, reference: Any | None) -> Preparation:
        """Computes this rank's columns.

        reference: the reference's weights, as copied by the optimizer; None for an objective without a reference.
        """
        share = self._plans.whole(batch)
        mine = np.arange(len(batch))
        tokens = None if reference is None else self._scored(batch, share, reference)
        if tokens is not None:
            mine = samples_of(share, self._collective.rank)
        return Preparation(columns_of(batch, mine, np.zeros(len(batch)), {"log_probs_ref": tokens}), {})

    def update(
        self, key: WorkKey, batch: ExperienceBatch, columns: PreparedColumns, changed: Callable[[], None]
    ) -> Updated:
        """Takes the steps. Raises as `Update.take` does.

        changed: called after each step.
        """
        steps = self._plans.steps(batch, key)
        rate = learning_rate(self._spec, key.iteration)
        sums = []
        norms = []
        for step in steps:
            sums.append(self._learner.gradients(batch, columns.log_probs_ref, step))
            norms.append(self._optimizer.apply(rate, sums[-1].loss))
            changed()
        metrics = objective_metrics(sums, norms) | {"learning_rate": rate}
        fingerprint: dict[str, float | str] = {name: metrics[name] for name in ("loss", "grad_norm")}
        return Updated(metrics, fingerprint | {"plan": plan_digest(steps)})

    def score_reference(self, batch: ExperienceBatch, reference: Any | None) -> ScoredRows:
        """Scores rows with the reference's weights, for `evaluate`. reference: as for `prepare`."""
        if reference is None:
            return ScoredRows(batch, None)
        share = self._plans.whole(batch)
        found = self._scored(batch, share, reference)
        return ScoredRows(batch, shared(self._collective, share, batch.response_offsets, found))

    def evaluate(self, rows: ScoredRows) -> dict[str, float]:
        """Returns the loss on rows with the current weights and, for preferences and labels, accuracy and margin."""
        groups = groups_of(rows.batch, self._objective.labelled)
        scored = self._learner.scores(rows.batch, self._plans.whole(rows.batch))
        sums = self._learner.sums(rows.batch, groups, scored, rows.reference)
        found = {"evaluation/loss": sums.loss}
        return found | {
            name.replace("preference/", "evaluation/"): value for name, value in preference_metrics([sums]).items()
        }

    def _scored(self, batch: ExperienceBatch, share: StepPlan, reference: Any) -> Float32:
        """Returns the reference's log-probabilities of this rank's tokens, [T]; 0 elsewhere."""
        with self._optimizer.exchanged(reference):
            return scored_tokens(self._forward, batch, share, self._collective)
