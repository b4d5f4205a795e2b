"""Reinforcement learning of a language model: what `workload.kind: language` prepares and learns of sealed experience.

Consumes responses that controllers have sealed. Produces advantages and log-probabilities of tokens in `prepare`, and optimizer
steps of the policy, and of the critic if there is one, in `learn`. With `asynchrony.streamed`, shards are learnt from one by one.
"""

from __future__ import annotations

from yatt_core.engines.train.base.accumulation import Accumulation, Passes
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.policy_workload import PolicyWorkload
from yatt_core.engines.train.base.preparation import Preparation, Preparer
from yatt_core.engines.train.base.updating import Update, Updated
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt
from yatt_core.workloads.trained import Changed


class ReinforcementWorkload(PolicyWorkload):
    """Learns from scored responses by `algorithm`; implements `FineTunes` and `Accumulates` as well."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._accumulation = Accumulation(policy.spec, policy.context)

    def accumulate(self, task: BatchTask) -> float:
        """Prepares the task's shards and adds up their gradients, unless that is done."""
        return self._accumulation.add(task, self._passes())

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """See `PolicyWorkload.prepare`; of streamed shards, only what is missing is computed."""
        if self._spec.asynchrony.streamed:
            return self._accumulation.prepare(task, self._passes())
        return super().prepare(task)

    def _taken(self, task: BatchTask, prepared: PrepareReceipt, changed: Changed) -> tuple[Updated, dict[str, float]]:
        if self._spec.asynchrony.streamed:
            return self._accumulation.take(task, self._passes(), changed)
        return super()._taken(task, prepared, changed)

    def _prepared(self, batch: ExperienceBatch, task: BatchTask) -> Preparation:
        policy = self.policy
        preparer = Preparer(
            spec=self._spec,
            forward=policy.forward,
            optimizer=policy.optimizer,
            collective=policy.collective,
            teachers=policy.teachers,
            critic=None if policy.critic is None else policy.critic.passes,
        )
        return preparer.prepare(batch, policy.plans().shape, policy.reference, task)

    def _update(self, task: BatchTask, batch: ExperienceBatch, columns: PreparedColumns, changed: Changed) -> Updated:
        policy = self.policy
        update = Update(
            spec=self._spec,
            plans=policy.plans(),
            forward=policy.forward,
            optimizer=policy.optimizer,
            collective=policy.collective,
            critic=policy.critic,
        )
        return update.take(key=task.key, batch=batch, columns=columns, state=task.coefficients, changed=changed)

    def _passes(self) -> Passes:
        policy = self.policy
        return Passes(
            plans=policy.plans(),
            forward=policy.forward,
            optimizer=policy.optimizer,
            collective=policy.collective,
            prepare=self._prepared,
        )

    def _forget(self) -> None:
        super()._forget()
        self._accumulation.drop()

    def _drop(self) -> None:
        super()._drop()
        self._accumulation.drop()
