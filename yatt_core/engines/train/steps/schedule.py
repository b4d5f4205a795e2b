"""The learning rate of an iteration: a pure function of its number, so that no state has to survive a crash."""

from __future__ import annotations

import math

from yatt_core.spec.sections.trainer import ScheduleSpec


def learning_rate_factor(schedule: ScheduleSpec, iteration: int, iterations: int) -> float:
    """Returns the fraction of the full learning rate in an iteration, counted from 1 to `iterations`.

    It rises as k / lr_warmup_iterations, is 1 at the first iteration after the warmup, and then falls so that it
    would reach `min_lr_ratio` one iteration after the last (linear, or half a cosine: arXiv 1608.03983).
    """
    rise = schedule.lr_warmup_iterations
    if iteration <= rise:
        return iteration / rise
    progress = min((iteration - 1 - rise) / max(iterations - rise, 1), 1.0)
    match schedule.kind:
        case "constant":
            return 1.0
        case "linear":
            left = 1.0 - progress
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
    return schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * left
