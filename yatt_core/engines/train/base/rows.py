"""Learning by an objective: of rows of the run's data (`workload.kind: rows`), or of pairs that the policy has sampled.

Consumes groups of responses. Produces log-probabilities under the reference in `prepare` if the objective needs them, optimizer
steps in `learn`, and, of rows, the held-out ones' loss and accuracy in `evaluate`.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.engines.train.base.batch_reader import BatchReader, RowReader
from yatt_core.engines.train.base.learned_batch import load_held_out
from yatt_core.engines.train.base.objective_work import ObjectiveWork, ScoredRows
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.policy_workload import PolicyWorkload
from yatt_core.engines.train.base.preparation import Preparation
from yatt_core.engines.train.base.updating import Updated
from yatt_core.engines.train.ranks.by_all import by_all
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.protocols.receipts import BatchTask, RowsReceipt, RowsTask
from yatt_core.workloads.trained import Changed


class ObjectiveWorkload(PolicyWorkload):
    """Learns from sealed responses by `objective`; implements `FineTunes` as well."""

    def _prepared(self, batch: ExperienceBatch, task: BatchTask) -> Preparation:
        return self._work().prepare(batch, self.policy.reference)

    def _update(self, task: BatchTask, batch: ExperienceBatch, columns: PreparedColumns, changed: Changed) -> Updated:
        return self._work().update(task.key, batch, columns, changed)

    def _work(self) -> ObjectiveWork:
        policy = self.policy
        return ObjectiveWork(policy.plans(), policy.forward, policy.optimizer, policy.collective)


class RowsWorkload(ObjectiveWorkload):
    """Learns from rows, and implements `Evaluates`. Held-out rows are read, and scored with the reference, once."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._held_out: ScoredRows | None = None

    def _reader(self) -> BatchReader:
        return RowReader(self.policy.spec, self.policy.context)

    def begin(self) -> None:
        """See `PolicyWorkload.begin`."""
        self._held_out = None
        super().begin()

    def load(self, folder: Path, version: int, changed: Changed) -> None:
        """See `PolicyWorkload.load`."""
        super().load(folder, version, changed)
        self._held_out = None

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Scores the held-out rows with the current weights, and, the first time, with the reference's."""
        work = self._work()
        if self._held_out is None:
            rows = by_all(self.policy.world, lambda: load_held_out(self._spec, self._context))
            self._held_out = work.score_reference(rows, self.policy.reference)
        return RowsReceipt(task.key, len(self._held_out.batch.group_offsets) - 1, work.evaluate(self._held_out))
