"""What a controller sends of an evaluation in progress: the results of one decode batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.protocols.receipts import TaskResult


@dataclass(frozen=True, slots=True)
class AnsweredTasks:
    """The results of a decode batch of held-out tasks.

    rows: indexes of the tasks among all held-out tasks.
    """

    rows: tuple[int, ...]
    tasks: tuple[TaskResult, ...]
