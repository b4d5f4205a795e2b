"""A reader of everything on every rank, with which reads of shares are compared."""

from __future__ import annotations

from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.learned_batch import load_learned_batch
from yatt_core.engines.train.base.preparation import read_columns
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt


class WholeReader(BatchReader):
    """Reads as a rank that is alone does, and keeps nothing; the columns are those of the batch that was read last."""

    _last: ExperienceBatch

    def batch(self, task: BatchTask, collective: Collective, plans: Plans) -> ExperienceBatch:
        self._last, _ = load_learned_batch(self._spec, self._context, task)
        return self._last

    def columns(self, prepared: PrepareReceipt, collective: Collective) -> PreparedColumns:
        columns, _ = read_columns(self._spec, self._context.run_folder, self._last, prepared)
        return columns
