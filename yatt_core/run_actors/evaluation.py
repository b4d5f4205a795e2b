"""Has held-out tasks answered: gives each controller its part and takes the results as decode batches are finished.

Consumes evaluation tasks; produces the results by task. A lost controller ends the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from yatt_core.protocols.answers import AnsweredTasks
from yatt_core.protocols.receipts import EvaluateTask, TaskResult
from yatt_core.run_actors.blocked import BlockedControllers
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.controller_layout import CONTROLLER
from yatt_core.run_actors.streams import StreamWait, next_item


def evaluate(
    calls: ActorCalls,
    tasks: Sequence[EvaluateTask],
    blocked: BlockedControllers,
    allows: Callable[[int], bool] | None,
) -> dict[int, TaskResult]:
    """Returns the results by the task's index.

    allows: given how many tasks are answered, returns True if the rest may be left out; None if all are needed.

    Raises `InfrastructureError`, and any exception that a controller raised.
    """
    registry = calls.registry
    streams: dict[Any, str] = {}
    for name, controller, task in zip(registry.names_of(CONTROLLER), registry.of(CONTROLLER), tasks, strict=True):
        streams[controller.evaluate.options(num_returns="streaming").remote(task)] = name
    results: dict[int, TaskResult] = {}
    wait = StreamWait(
        calls=calls,
        what="held-out task",
        blocked=blocked,
        is_enough=None if allows is None else lambda: allows(len(results)),
    )
    while streams:
        stream = wait.next_ready(streams)
        if stream is None:
            break
        answered: AnsweredTasks | None = next_item(calls, stream, streams[stream])
        if answered is None:
            del streams[stream]
        else:
            results.update(zip(answered.rows, answered.tasks, strict=True))
    return results
