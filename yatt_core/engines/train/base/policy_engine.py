"""The train engine of a language model: the workload is chosen by what the spec's declares that it learns from."""

from __future__ import annotations

from yatt_core.engines.train.base.engine import WorkloadTrainEngine
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.policy_workload import PolicyWorkload
from yatt_core.engines.train.base.reinforcement import ReinforcementWorkload
from yatt_core.engines.train.base.rows import ObjectiveWorkload, RowsWorkload
from yatt_core.spec.run import RunSpec


def policy_class(spec: RunSpec) -> type[PolicyWorkload]:
    """Returns the workload of a spec that trains a language model."""
    if spec.has.learns_from == "rows":
        return RowsWorkload
    return ReinforcementWorkload if spec.objective is None else ObjectiveWorkload


class PolicyTrainEngine(WorkloadTrainEngine):
    """Implements `TrainEngine` for a language model.

    policy: the model that the workload trains.
    """

    workload: PolicyWorkload
    policy: Policy

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        super().__init__(policy.spec, policy_class(policy.spec)(policy))
