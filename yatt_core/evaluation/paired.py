"""Paired tests: whether one set of weights answers the same tasks better than another. Pure functions.

Consumes the score in [0, 1] of each task under both. Produces p-values of the one-sided hypothesis that the first is no better;
they depend on neither the order of the tasks nor a random state of the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from yatt_core.keys import stable_seed

TestKind = Literal["mcnemar", "bootstrap"]
TaskKey = tuple[str, str]
"""The source (or set) of a task, and its id."""
DRAWN_AT_ONCE = 1 << 20
"""Maximum number of indices that the bootstrap holds at a time."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The result of a paired test.

    tasks: number of tasks that both have answered.
    wins, losses: numbers of tasks that the first answers better, and worse.
    difference: mean difference of the scores, first minus second.
    p_value: probability of a result at least as good if the first were no better.
    """

    test: TestKind
    tasks: int
    wins: int
    losses: int
    difference: float
    p_value: float

    def is_better(self, level: float) -> bool:
        """Returns True if the first is better at a level of significance."""
        return self.p_value <= level and self.difference > 0


def accuracy_of(task: Mapping[str, Any]) -> float | None:
    """Returns the fraction of correct answers to a task, of which the ledger has the fields; None if none has a score."""
    return task["correct"] / task["samples"] if task["samples"] else None


def scored_by_both(
    first: Mapping[TaskKey, float | None], second: Mapping[TaskKey, float | None]
) -> tuple[dict[TaskKey, float], dict[TaskKey, float]]:
    """Returns the scores of the tasks that have one in both; both are empty if they are not of the same tasks."""
    if first.keys() != second.keys():
        return {}, {}
    kept = [key for key in first if first[key] is not None and second[key] is not None]
    return {key: float(first[key] or 0.0) for key in kept}, {key: float(second[key] or 0.0) for key in kept}


def compare(
    first: Mapping[TaskKey, float],
    second: Mapping[TaskKey, float],
    test: TestKind = "mcnemar",
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedComparison:
    """Tests whether `first` is better than `second` on the same tasks.

    mcnemar: the exact test of McNemar (1947), a sign test over the tasks whose scores differ; with several answers to each
        task, of the fractions that are correct.
    bootstrap: the mean difference over tasks drawn with replacement (Efron, 1979): the fraction of resamples in which it is
        not positive, with the sample itself counted once.

    Raises `ValueError` unless both have the same tasks, and at least one.
    """
    if not first or first.keys() != second.keys():
        raise ValueError(f"a paired test needs the same tasks, not {len(first)} and {len(second)} different ones")
    differences = [first[key] - second[key] for key in sorted(first)]
    wins = sum(each > 0 for each in differences)
    losses = sum(each < 0 for each in differences)
    drawn = stable_seed("bootstrap", seed)
    p_value = sign_test(wins, losses) if test == "mcnemar" else bootstrap(differences, resamples, drawn)
    mean = math.fsum(differences) / len(differences)
    return PairedComparison(
        test=test, tasks=len(differences), wins=wins, losses=losses, difference=mean, p_value=p_value
    )


def sign_test(wins: int, losses: int) -> float:
    """Returns the probability of at least so many wins among as many fair coin tosses as there are wins and losses."""
    trials = wins + losses
    return math.fsum(math.comb(trials, k) / 2**trials for k in range(wins, trials + 1)) if trials else 1.0


def bootstrap(differences: Sequence[float], resamples: int, seed: int) -> float:
    """Returns the fraction of resamples whose mean difference is not positive; the sample itself is one of them."""
    if not any(differences):
        return 1.0
    values = np.asarray(differences, dtype=np.float64)
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, DRAWN_AT_ONCE // len(values))
    below = 0
    for begin in range(0, resamples, rows):
        drawn = generator.integers(0, len(values), size=(min(rows, resamples - begin), len(values)))
        below += int((values[drawn].sum(axis=1) <= 0).sum())
    return (below + 1) / (resamples + 1)
