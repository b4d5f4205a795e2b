"""Which controller has which shards, and which takes over from a lost one: a pure state machine without I/O.

Consumes names, tasks and their outcomes; produces tasks by controller. Results never depend on which controller
does what.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import EvaluateTask, ShardTask

Assigned = dict[str, tuple[ShardTask, ...]]


class ShardAssignment:
    """An iteration's shards, assigned to controllers by shard number.

    A second attempt thus gives a shard to the same controller as the first one did, queued behind any work that
    this controller may still be doing.
    """

    def __init__(self, controllers: Sequence[str], tasks: Sequence[ShardTask]) -> None:
        self._open: dict[str, dict[WorkKey, ShardTask]] = {name: {} for name in controllers}
        for task in tasks:
            self._open[controllers[task.key.shard % len(controllers)]][task.key] = task

    def unfinished(self) -> Assigned:
        """Returns the unfinished shards of each controller that has any."""
        return {name: tuple(tasks.values()) for name, tasks in self._open.items() if tasks}

    def finish(self, controller: str, key: WorkKey) -> None:
        """Records that a controller has sealed a shard."""
        del self._open[controller][key]

    def lose(self, controller: str) -> Assigned | None:
        """Moves a lost controller's unfinished shards to the others, each to the one with the least work left.

        Returns the shards by their new controllers; None if there is work but no controller left to do it.
        """
        left = self._open.pop(controller).values()
        if left and not self._open:
            return None
        moved: dict[str, list[ShardTask]] = {}
        for task in left:
            name = min(self._open, key=lambda other: len(self._open[other]))
            self._open[name][task.key] = task
            moved.setdefault(name, []).append(task)
        return {name: tuple(tasks) for name, tasks in moved.items()}


def evaluate_tasks(
    key: WorkKey, term: int, held_out: int, controllers: int, only: Collection[int] | None = None
) -> list[EvaluateTask]:
    """Returns each controller's part of the held-out tasks.

    key: the evaluation's, without a shard.
    only: indexes of the tasks to answer; None for all.
    """
    wanted = None if only is None else frozenset(only)
    bounds = [held_out * part // controllers for part in range(controllers + 1)]
    return [
        EvaluateTask(
            key=replace(key, shard=part),
            term=term,
            start=bounds[part],
            stop=bounds[part + 1],
            weight_version=key.iteration,
            only=wanted,
        )
        for part in range(controllers)
    ]
