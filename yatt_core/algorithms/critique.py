"""Credit by critique (CAPO, arXiv 2508.02298): the vote of several critiques, and the rewards of single tokens.

Consumes critiques, each a set of the numbers of wrong steps, from 1. Produces the extent to which each step counts as
wrong, and one reward per token. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Vote = Literal["intersection", "majority", "union", "average", "greedy"]


def voted(critiques: Sequence[Collection[int]], steps: int, vote: Vote) -> Float64:
    """Returns how wrong each step is by the vote of k critiques, from 0 to 1: [steps].

    intersection: 1 if all critiques name the step.
    majority: 1 if at least k / 2 of them do.
    union: 1 if any of them does.
    average: the fraction that does.
    greedy: 1 if the first critique does; there should be no other.

    Raises `ValueError` if there is no critique, and for a number that is not one of the steps.
    """
    if not critiques:
        raise ValueError("a vote needs at least one critique")
    counts = np.zeros(steps)
    for critique in critiques[:1] if vote == "greedy" else critiques:
        for number in set(critique):
            if not 1 <= number <= steps:
                raise ValueError(f"a critique names step {number}; there are {steps}")
            counts[number - 1] += 1
    k = len(critiques)
    least = {"intersection": k, "majority": k / 2, "union": 1, "greedy": 1}
    return counts / k if vote == "average" else np.where(counts >= least[vote], 1.0, 0.0)


def token_rewards(
    outcome: float, wrong: Float64, token_steps: Int64, outcome_weight: float, wrong_step_penalty: float
) -> Float64:
    """Computes R_t = C r - P w(step of t), where w is 0 for a token of no step. Returns [T].

    outcome: r, the response's reward.
    wrong: [steps], w, the result of the vote.
    token_steps: [T], the index of each token's step, from 0; -1: the token belongs to no step.
    outcome_weight, wrong_step_penalty: C and P.
    """
    extent = np.where(token_steps < 0, 0.0, wrong[token_steps])
    return outcome_weight * outcome - wrong_step_penalty * extent
