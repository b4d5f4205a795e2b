"""Collects a wave's shards: distributes them over the controllers and reassigns those of a lost controller.

Consumes shard tasks; produces receipts as shards are sealed. Results never depend on which controller produces
a shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import ShardReceipt, ShardTask
from yatt_core.run_actors.actor_registry import DISPATCHER
from yatt_core.run_actors.blocked import BlockedControllers
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.controller_layout import CONTROLLER
from yatt_core.run_actors.shard_assignment import Assigned, ShardAssignment
from yatt_core.run_actors.streams import StreamWait, next_item

log = logging.getLogger(__name__)


class WaveCollection:
    """Shards that controllers are at work on, from the moment in which this is made.

    Controllers go on while nobody asks for receipts, so that other work of the run may be waited for in between.
    """

    def __init__(self, calls: ActorCalls, tasks: Sequence[ShardTask], blocked: BlockedControllers) -> None:
        self._calls = calls
        self._blocked = blocked
        self._assignment = ShardAssignment(calls.registry.names_of(CONTROLLER), tasks)
        iterations = {(task.key.branch, task.key.iteration) for task in tasks}
        for key in [key for key in calls.dispatched if (key.branch, key.iteration) not in iterations]:
            del calls.dispatched[key]
        self._streams = _begin(calls, self._assignment.unfinished())

    def receipts(self, is_enough: Callable[[], bool] | None = None) -> Iterator[ShardReceipt]:
        """Yields receipts as they arrive.

        is_enough: returns True if the caller needs no more shards; None if it needs all.

        The shards of a lost controller go to the others, which adopt finished shards and continue unfinished ones.
        Raises `InfrastructureError` if no controller is left, and any exception that a live controller raised.
        """
        calls = self._calls
        streams = self._streams
        wait = StreamWait(calls, "shard", self._blocked, is_enough)
        while streams:
            stream = wait.next_ready(streams)
            if stream is None:
                return
            name = streams[stream]
            try:
                receipt: ShardReceipt | None = next_item(calls, stream, name)
            except InfrastructureError as error:
                if name in calls.registry.names or (moved := self._assignment.lose(name)) is None:
                    raise
                log.warning("%s; its shards go to %s", error, ", ".join(moved) or "no controller, as they are finished")
                streams = {other: owner for other, owner in streams.items() if owner != name}
                calls.registry.of(DISPATCHER)[0].forget.remote(name)
                streams |= _begin(calls, moved)
            else:
                if receipt is None:
                    del streams[stream]
                else:
                    self._assignment.finish(name, receipt.key)
                    yield receipt


def _begin(calls: ActorCalls, assigned: Assigned) -> dict[Any, str]:
    """Assigns the shards to the controllers; returns each stream of receipts with the controller's name."""
    registry = calls.registry
    streams = dict[Any, str]()
    controllers = dict(zip(registry.names_of(CONTROLLER), registry.of(CONTROLLER), strict=True))
    for name, tasks in assigned.items():
        told = [replace(task, writers=calls.dispatched[task.key]) for task in tasks]
        calls.dispatched.update(task.key for task in tasks)
        streams[controllers[name].collect.options(num_returns="streaming").remote(told)] = name
    return streams
