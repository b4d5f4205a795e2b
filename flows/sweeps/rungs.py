"""Rungs: the iterations at which trials are compared. Consumes the cadence of a run's evaluation; pure.

Rungs follow successive halving (arXiv 1810.05934): each is `reduction` times as far as the one before, and the last one is the
run's end. Since trials are compared by what their evaluation measured, a rung is an iteration that is evaluated.
"""

from __future__ import annotations

import math


def rungs_of(iterations: int, every: int, reduction: int, first: int = 1) -> tuple[int, ...]:
    """Returns the rungs in order.

    iterations: those of a whole run.
    every: iterations between evaluations; with 0, only the last iteration is one.
    first: the earliest iteration that may be a rung.
    """
    rungs = [iterations]
    reach = float(iterations)
    while every > 0 and reach > every:
        reach /= reduction
        rung = math.ceil(reach / every) * every
        if rung < first:
            break
        if rung < rungs[0]:
            rungs.insert(0, rung)
    return tuple(rungs)
