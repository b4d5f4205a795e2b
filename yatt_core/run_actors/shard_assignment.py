"""Which controller has which shards, and who takes over from one that was lost: a pure state machine, owning no I/O.

Consumes names, tasks and what became of them; produces tasks by controller. Results never depend on who does what.
"""

from __future__ import annotations

from collections.abc import Sequence

from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import ShardTask

Assigned = dict[str, tuple[ShardTask, ...]]


class ShardAssignment:
    """An iteration's shards, dealt out by their numbers.

    So a second attempt gives a shard to whom the first one gave it, behind what that one may still be at.
    """

    def __init__(self, controllers: Sequence[str], tasks: Sequence[ShardTask]) -> None:
        self._open: dict[str, dict[WorkKey, ShardTask]] = {name: {} for name in controllers}
        for task in tasks:
            self._open[controllers[task.key.shard % len(controllers)]][task.key] = task

    def unfinished(self) -> Assigned:
        """What each controller that has anything to do still has to."""
        return {name: tuple(tasks.values()) for name, tasks in self._open.items() if tasks}

    def finish(self, controller: str, key: WorkKey) -> None:
        """A controller has sealed a shard."""
        del self._open[controller][key]

    def lose(self, controller: str) -> Assigned | None:
        """Gives a lost controller's unfinished shards to the others, each to the one that has least to do.

        Returns who gets what; none where there is work and nobody is left to do it.
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
