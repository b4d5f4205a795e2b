"""What was measured of a run, on either side, and the figures that follow: pure functions.

Consumes moments and the seconds of parts; produces ratios and accuracies. The parts of an iteration have the same names on both
sides:

    generate, update, weights   the step: sampling; log-probabilities, gradients and optimizer; new weights for the sampler
    rewards                     of the samples
    evaluate, checkpoint        whatever their time goes into
    data                        ours: prompts, chunks and shards, read and written; TRL's: tokenising, padding, advantages
    orchestration               Ray, Prefect, the ledger, and waiting for other processes; TRL has none
    other                       work without a name
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

import numpy as np

GENERATE, UPDATE, WEIGHTS = STEP = ("generate", "update", "weights")
"""The parts of a step, as in `benchmarks.step`."""
REWARDS = "rewards"
EVALUATE = "evaluate"
CHECKPOINT = "checkpoint"
DATA = "data"
ORCHESTRATION = "orchestration"
OTHER = "other"
PARTS = (*STEP, REWARDS, EVALUATE, CHECKPOINT, DATA, ORCHESTRATION, OTHER)


class Point(NamedTuple):
    """An accuracy and the second at which it was known."""

    second: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of one side. Moments are seconds since its command began.

    begin: when its first iteration began, with the weights of the start evaluated.
    end: when its last iteration was over, with its evaluation.
    seconds: when its command had ended.
    accuracies: on the held-out tasks, of the start and of each evaluated iteration.
    parts: mean seconds of an iteration.
    """

    iterations: int
    begin: float
    end: float
    seconds: float
    accuracies: Sequence[Point]
    parts: Mapping[str, float]

    @property
    def iteration_seconds(self) -> float:
        """Mean wall seconds of an iteration, evaluations and checkpoints included."""
        return (self.end - self.begin) / self.iterations

    @property
    def step_share(self) -> float:
        """The fraction of an iteration that goes into its step."""
        return sum(self.parts[part] for part in STEP) / sum(self.parts.values())

    def accuracy_at(self, second: float) -> float:
        """Returns the accuracy at a second: on the line between the evaluations around it, or else that of the nearest one."""
        seconds = [point.second for point in self.accuracies]
        return float(np.interp(second, seconds, [point.accuracy for point in self.accuracies]))


class Round(NamedTuple):
    """A run of each side, one after the other."""

    ours: Measured
    trl: Measured


def figures_of(rounds: Sequence[Round]) -> dict[str, float | None]:
    """Returns the figures: medians of times over the rounds, means of shares and accuracies."""
    ours = median(each.ours.iteration_seconds for each in rounds)
    theirs = median(each.trl.iteration_seconds for each in rounds)
    return {
        "iteration_ratio_trl": theirs / ours,
        "step_share_of_iteration": mean(each.ours.step_share for each in rounds),
        "accuracy_at_equal_seconds": mean(each.ours.accuracy_at(each.ours.seconds) for each in rounds),
        "accuracy_at_equal_seconds_trl": mean(each.trl.accuracy_at(each.ours.seconds) for each in rounds),
        "iteration_s": ours,
        "seconds": median(each.ours.seconds for each in rounds),
        "first_iteration_s": median(each.ours.begin for each in rounds),
        "accuracy": mean(each.ours.accuracies[-1].accuracy for each in rounds),
    }


def baselines_of(rounds: Sequence[Round]) -> dict[str, float]:
    """Returns TRL's values of the figures, and the accuracy with which both sides begin."""
    return {
        "iteration_s_trl": median(each.trl.iteration_seconds for each in rounds),
        "step_share_of_iteration_trl": mean(each.trl.step_share for each in rounds),
        "seconds_trl": median(each.trl.seconds for each in rounds),
        "first_iteration_s_trl": median(each.trl.begin for each in rounds),
        "accuracy_trl": mean(each.trl.accuracies[-1].accuracy for each in rounds),
        "accuracy_start": mean(each.ours.accuracies[0].accuracy for each in rounds),
        "accuracy_start_trl": mean(each.trl.accuracies[0].accuracy for each in rounds),
    }


def mean_parts(runs: Sequence[Measured]) -> dict[str, float]:
    """Returns the mean seconds of an iteration's parts over runs of a side."""
    return {part: mean(run.parts[part] for run in runs) for part in PARTS}
