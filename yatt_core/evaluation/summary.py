"""What an evaluation has found, over all tasks and by source: pure functions over the results of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yatt_core.evaluation.estimators import Estimate, estimate, pass_at_k
from yatt_core.protocols.receipts import TaskResult
from yatt_core.spec.sections.data import DataSpec
from yatt_core.spec.sections.evaluation import EvaluationSpec

ACCURACY = "accuracy"
MAJORITY = "majority"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of some tasks.

    tasks: those with an answer that has a score.
    unscored: number of answers without a score.
    estimates: by name: `accuracy`, the fraction of correct answers; `pass_at_K`; `majority`.
    reward: mean reward of the answers.
    """

    tasks: int
    estimates: Mapping[str, Estimate]
    reward: float
    unscored: int = 0


def summarise(tasks: Sequence[TaskResult], evaluation: EvaluationSpec) -> Summary | None:
    """Returns the figures of tasks, whatever their order; None if none has an answer with a score."""
    unscored = sum(task.unscored for task in tasks)
    tasks = [task for task in tasks if task.samples]
    if not tasks:
        return None
    measures: dict[str, Callable[[TaskResult], float]] = {ACCURACY: lambda task: task.correct / task.samples}
    if evaluation.sampling is not None:
        for k in sorted(evaluation.sampling.pass_at):
            measures[f"pass_at_{k}"] = _passing(k)
        if evaluation.sampling.vote is not None:
            measures[MAJORITY] = lambda task: task.majority or 0.0
    estimates = {
        name: estimate([measure(task) for task in tasks], evaluation.samples) for name, measure in measures.items()
    }
    reward = math.fsum(task.reward for task in tasks) / len(tasks)
    return Summary(len(tasks), estimates, reward, unscored)


def by_source(tasks: Sequence[TaskResult], data: DataSpec, evaluation: EvaluationSpec) -> dict[str, Summary]:
    """Returns the figures of each source's tasks by the source's name; empty for a run with a single source.

    A source without any score has no figures.
    """
    if len(data.sources) == 1:
        return {}
    parts = {name: [task for task in tasks if task.source == i] for i, name in enumerate(data.source_names)}
    found = {name: summarise(part, evaluation) for name, part in parts.items()}
    return {name: summary for name, summary in found.items() if summary is not None}


def _passing(k: int) -> Callable[[TaskResult], float]:
    """Returns the estimate of pass@k; of all answers of a task that has fewer than k with a score."""
    return lambda task: pass_at_k(task.samples, task.correct, min(k, task.samples))
