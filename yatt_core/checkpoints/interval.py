"""How many iterations should lie between two checkpoints: Young's interval, for runs that repeat updates alone.

Young (A first order approximation to the optimum checkpoint interval,
CACM 17(9), 1974) weighs the cost C of a checkpoint against the work lost at a failure, on average half an interval tau:

    C / tau + (tau / 2) / M   is least at   tau = sqrt(2 C M)            M: seconds between failures

Here a failure loses less. The experience of every iteration is durable, so replay repeats only the updates since the checkpoint,
r seconds of the T seconds of an iteration, and nothing of the iteration that follows a checkpoint at once. With a checkpoint every n
iterations, a second of training costs

    C / (n T) + r (n - 1) / (2 M)     seconds more, which is least at     n = sqrt(2 C M / (r T))

that is Young's interval times sqrt(T / r). Only failures that lose the trainer's tensors count: a driver that attaches to a
living trainer replays nothing.
"""

from __future__ import annotations

from math import sqrt


def checkpoint_interval(stall: float, between_failures: float, replay: float, iteration: float) -> int:
    """Iterations between two checkpoints, at least 1. All arguments in seconds and positive; see the module's formula."""
    best = sqrt(2 * stall * between_failures / (replay * iteration))
    below = max(1, int(best))
    costs = {n: overhead(n, stall, between_failures, replay, iteration) for n in (below, below + 1)}
    return min(costs, key=costs.__getitem__)


def overhead(every: int, stall: float, between_failures: float, replay: float, iteration: float) -> float:
    """Seconds that checkpoints and replay take for a second of training."""
    return stall / (every * iteration) + replay * (every - 1) / (2 * between_failures)
