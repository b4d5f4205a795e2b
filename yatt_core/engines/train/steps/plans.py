"""All plans of an iteration: which rank computes on which samples in `prepare`, in a step of `learn`, and in a backward pass.

Consumes a batch, of which a rank need not know more than the outline. Produces plans, and the samples that each part needs
for all of them. What a rank computes on and what it is sent cannot differ, because both come from here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.engines.train.steps.groups import groups_of
from yatt_core.engines.train.steps.plan import PlanShape, StepPlan, plan_steps
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.keys import WorkKey
from yatt_core.spec.run import RunSpec

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a run's iterations.

    shape: what shapes them in addition to the samples.
    """

    spec: RunSpec
    shape: PlanShape

    def whole(self, batch: ExperienceBatch) -> StepPlan:
        """Returns the plan of a pass over all samples."""
        return self.shape.step(batch.lengths, np.arange(len(batch), dtype=np.int64))

    def steps(self, batch: ExperienceBatch, key: WorkKey) -> tuple[StepPlan, ...]:
        """Returns the plans of an iteration's optimizer steps."""
        return plan_steps(batch.lengths, batch.group_offsets, self.shape, self.spec.seed, key.branch, key.iteration)

    def samples_of_parts(self, batch: ExperienceBatch, key: WorkKey) -> tuple[Int64, ...]:
        """Returns the sampled responses on which each part computes in an iteration, in any pass or step, ascending."""
        everything = self._all(batch, key)
        found = [[samples for plan in everything for samples in plan.parts[part]] for part in range(self.shape.ranks)]
        none = np.empty(0, dtype=np.int64)
        return tuple(np.unique(np.concatenate([none, *samples])) for samples in found)

    def _all(self, batch: ExperienceBatch, key: WorkKey) -> list[StepPlan]:
        # No objective that labels responses samples them, so that each backward pass has the samples of its step.
        found = [self.whole(batch), *self.steps(batch, key)]
        distillation = self.spec.algorithm.distillation
        if distillation is not None and distillation.privileged is not None:
            found.append(self.whole(batch.shown_to_teacher()))
        return found


def backward_plan(shape: PlanShape, batch: ExperienceBatch, step: StepPlan, labelled: bool) -> StepPlan:
    """Returns the plan of the backward pass of a step of an objective: without the samples that are only scored.

    labelled: as in `Objective`.
    """
    if not labelled:
        return step
    return shape.step(batch.lengths, groups_of(batch, labelled).within(step.samples).first)
