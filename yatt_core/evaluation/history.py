"""The history of a suite: which evaluations are significantly worse than earlier ones. Pure functions.

Consumes the score of each task at each evaluation, oldest first. Only evaluations with the same digest are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yatt_core.evaluation.paired import PairedComparison, TaskKey, TestKind, compare, scored_by_both


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """An evaluation.

    iteration: that of the weights.
    scores: the fraction of correct answers to each task; None where no answer has a score.
    """

    iteration: int
    digest: str
    scores: Mapping[TaskKey, float | None]

    @property
    def accuracy(self) -> float:
        """The mean score; 0 without any."""
        known = [score for score in self.scores.values() if score is not None]
        return math.fsum(known) / len(known) if known else 0.0


@dataclass(frozen=True, slots=True)
class Regression:
    """An evaluation that is significantly worse than an earlier one.

    against: `best` or `last`.
    iteration: that of the earlier weights.
    found: the test of whether the earlier ones are better.
    """

    against: str
    iteration: int
    found: PairedComparison


def regressions(
    points: Sequence[EvaluationPoint], test: TestKind, level: float, resamples: int, seed: int
) -> list[list[Regression]]:
    """Returns for each evaluation what it is worse than: the best one before it, and the last one before it.

    If both are the same, it is named as the best.
    """
    found: list[list[Regression]] = []
    for number, point in enumerate(points):
        earlier = [each for each in points[:number] if each.digest == point.digest]
        rivals: dict[int, tuple[str, EvaluationPoint]] = {}
        if earlier:
            best = max(earlier, key=lambda each: each.accuracy)
            rivals = {id(earlier[-1]): ("last", earlier[-1]), id(best): ("best", best)}
        tested = []
        for name, rival in rivals.values():
            before, now = scored_by_both(rival.scores, point.scores)
            if before:
                tested.append(
                    Regression(
                        name,
                        rival.iteration,
                        compare(first=before, second=now, test=test, resamples=resamples, seed=seed),
                    )
                )
        found.append(sorted((each for each in tested if each.found.is_better(level)), key=lambda each: each.against))
    return found
