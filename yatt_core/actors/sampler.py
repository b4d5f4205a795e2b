"""The Ray actor of a sampler: a rollout actor whose engine draws shards of an iteration for a workload of one's own.

Consumes weights from the trainer's ranks as any rollout actor does, and tasks of the driver. Produces sealed shards.
"""

from __future__ import annotations

from collections.abc import Sequence

from yatt_core.actors.rollout import RolloutActor
from yatt_core.logs import log_context
from yatt_core.progress import advanced
from yatt_core.protocols.engines import SamplingEngine
from yatt_core.protocols.receipts import SampleTask, ShardRef


class SamplerActor(RolloutActor):
    """One sampler. Calls are served one at a time, in the order of arrival."""

    def count_shards(self, task: SampleTask) -> int:
        """Returns the number of an iteration's shards."""
        with self._presence.serving("count_shards", task.term):
            return self._sampling().count_shards(task)

    def sample(self, term: int, tasks: Sequence[SampleTask]) -> tuple[ShardRef, ...]:
        """Draws and seals some of an iteration's shards, but for those that are sealed; returns how they are named."""
        with self._presence.serving("sample", term):
            sealed = []
            for task in tasks:
                with log_context(iteration=task.key.iteration, phase="collect"):
                    sealed.append(self._sampling().sample(task))
                advanced(f"{len(sealed)} of {len(tasks)} shards")
            return tuple(sealed)

    def _sampling(self) -> SamplingEngine:
        engine = self._ready()
        assert isinstance(engine, SamplingEngine), "the registry of engines builds one for a run with samplers"
        return engine
