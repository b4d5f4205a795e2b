"""How many iterations to leave between two checkpoints: Young's interval, for runs that only repeat updates.

Young (A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974) weighs the cost C of a
checkpoint against the work lost at a failure, on average half an interval tau:

    C / tau + (tau / 2) / M   is least at   tau = sqrt(2 C M)            M: seconds between failures

A failure costs less here. The experience of every iteration is durable, so replay repeats only the updates since
the checkpoint, each of which takes r of an iteration's T seconds; it repeats nothing if the failure comes in the
iteration right after a checkpoint. With a checkpoint every n iterations, a second of training costs

    C / (n T) + r (n - 1) / (2 M)     additional seconds, which is least at     n = sqrt(2 C M / (r T))

that is, Young's interval times sqrt(T / r). Only failures that lose the trainer's tensors count: a driver that
attaches to a living trainer replays nothing.
"""

from __future__ import annotations

from math import sqrt


def checkpoint_interval(stall: float, between_failures: float, replay: float, iteration: float) -> int:
    """Returns the number of iterations between two checkpoints, at least 1.

    All arguments are in seconds and positive; see the formula in the module's docstring.
    """
    best = sqrt(2 * stall * between_failures / (replay * iteration))
    below = max(1, int(best))
    costs = {
        n: overhead(every=n, stall=stall, between_failures=between_failures, replay=replay, iteration=iteration)
        for n in (below, below + 1)
    }
    return min(costs, key=costs.__getitem__)


def overhead(every: int, stall: float, between_failures: float, replay: float, iteration: float) -> float:
    """Returns the seconds that checkpoints and replay add to each second of training."""
    return stall / (every * iteration) + replay * (every - 1) / (2 * between_failures)
