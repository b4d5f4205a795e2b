"""What is estimated from answers to tasks: pass@k, majority votes, and confidence intervals. Pure functions.

Consumes how many answers to each task are correct, and what they vote for. Produces numbers that depend neither on the
order of the answers nor on a random state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

NORMAL_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks.

    low, high: bounds of its 95 % confidence interval (`wilson_interval`).
    """

    value: float
    low: float
    high: float


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the unbiased estimate that one of k answers is correct, 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374).

    samples, correct: numbers n of answers to a task and c of correct ones.

    Raises `ValueError` unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {correct} correct answers in {samples}: expected 0 <= c <= n and 1 <= k <= n")
    ways = math.comb(samples, k)
    return (ways - math.comb(samples - correct, k)) / ways  # exact integers, rounded once


def majority(votes: Sequence[tuple[Hashable | None, bool]]) -> float:
    """Returns the accuracy of the most frequent answer to a task: the fraction of its votes that are correct.

    If several answers are equally frequent, the mean of their accuracies, as if one were chosen at random.

    votes: each response's answer, None for a response without one, and whether the response is correct.
    """
    counts: defaultdict[Hashable, list[int]] = defaultdict(lambda: [0, 0])
    for answer, correct in votes:
        if answer is not None:
            counts[answer][0] += 1
            counts[answer][1] += correct
    if not counts:
        return 0.0
    most = max(count for count, _ in counts.values())
    winners = [right for count, right in counts.values() if count == most]
    return sum(winners) / (most * len(winners))


def estimate(values: Sequence[float], samples: int) -> Estimate:
    """Returns the mean of one value in [0, 1] per task, with its interval.

    samples: number of answers from which each value comes.
    """
    mean = math.fsum(values) / len(values)
    return Estimate(mean, *wilson_interval(mean, effective_trials(values, samples)))


def effective_trials(values: Sequence[float], samples: int) -> float:
    """Returns the number of independent trials that would be as informative about the mean as the tasks are.

    The answers to a task are not independent of each other: the tasks are the clusters, and the variance of the mean is
    that of the tasks' values divided by their number (Korn and Graubard, 1998). For one answer per task, the number of
    tasks; never more than the number of answers.
    """
    tasks = len(values)
    mean = math.fsum(values) / tasks
    binomial = mean * (1 - mean)
    if samples == 1 or binomial <= 0:
        return tasks
    variance = math.fsum((value - mean) ** 2 for value in values) / tasks
    return min(tasks * binomial / variance, tasks * samples) if variance > 0 else tasks * samples


def wilson_interval(share: float, trials: float) -> tuple[float, float]:
    """Returns the 95 % Wilson score interval of a proportion (Wilson, 1927).

    Unlike the normal approximation it stays within 0 and 1 and is accurate for few trials.
    """
    z2 = NORMAL_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_95 / (1 + z2 / trials) * math.sqrt(max(0.0, share * (1 - share)) / trials + z2 / (4 * trials**2))
    # The minimum and the maximum are for rounding errors.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
