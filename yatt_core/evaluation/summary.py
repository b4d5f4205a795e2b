"""What an evaluation has found, over all tasks and by source: pure functions over the results of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yatt_core.evaluation.estimators import Estimate, estimate, pass_at_k
from yatt_core.protocols.receipts import TaskResult
from yatt_core.spec.sections.data import DataSpec
from yatt_core.spec.sections.evaluation import EvaluationSpec

ACCURACY, MAJORITY = "accuracy", "majority"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of some tasks.

    estimates: by name: `accuracy`, the fraction of correct answers; `pass_at_K`; `majority`.
    reward: mean reward of the answers.
    """

    tasks: int
    estimates: Mapping[str, Estimate]
    reward: float


def summarise(tasks: Sequence[TaskResult], evaluation: EvaluationSpec) -> Summary:
    """Returns the figures of one task or more, whatever their order."""
    measures: dict[str, Callable[[TaskResult], float]] = {ACCURACY: lambda task: task.correct / task.samples}
    if evaluation.sampling is not None:
        for k in sorted(evaluation.sampling.pass_at):
            measures[f"pass_at_{k}"] = _passing(k)
        if evaluation.sampling.vote is not None:
            measures[MAJORITY] = lambda task: task.majority or 0.0
    estimates = {
        name: estimate([measure(task) for task in tasks], evaluation.samples) for name, measure in measures.items()
    }
    return Summary(len(tasks), estimates, math.fsum(task.reward for task in tasks) / len(tasks))


def by_source(tasks: Sequence[TaskResult], data: DataSpec, evaluation: EvaluationSpec) -> dict[str, Summary]:
    """Returns the figures of each source's tasks by the source's name; empty for a run with a single source."""
    if len(data.sources) == 1:
        return {}
    parts = {name: [task for task in tasks if task.source == i] for i, name in enumerate(data.source_names)}
    return {name: summarise(part, evaluation) for name, part in parts.items() if part}


def _passing(k: int) -> Callable[[TaskResult], float]:
    return lambda task: pass_at_k(task.samples, task.correct, k)
