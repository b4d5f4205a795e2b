"""Measures what one wave of dynamic sampling costs its coordinator: settling the reports of 256 controllers.

The coordinator is the product's; the controllers are simulated by receipts' metadata, which arrive in a random order.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule, WaveGroups
from yatt_core.protocols.receipts import GroupFacts

CONTROLLERS = 256
SHARDS_EACH = 4
GROUPS = 2_048
AVERAGE = 10.0
VALID = 0.1
"""One group in ten is valid, in line with the average of the previous waves."""
REPEATS = 9


def coordinate_ms(seed: int) -> float:
    """Returns the median milliseconds that a wave costs the coordinator.

    It gathers the groups, settles the wave, computes the next state and serialises the outcome.
    """
    rule = SamplingRule(
        GROUPS, CONTROLLERS * SHARDS_EACH, filters=True, max_waves=4, ratio_cap=10.0, overdraw=1.2, decay=0.9
    )
    sampling = Sampling(rule, AVERAGE)
    plan = sampling.plan()
    noise = np.random.default_rng(seed)
    highest = (noise.random(plan.prompts) < VALID).astype(float)
    bounds = [plan.prompts * i // plan.shards for i in range(plan.shards + 1)]
    parts = [range(bounds[i], bounds[i + 1]) for i in noise.permutation(plan.shards)]
    told = [
        (part, GroupFacts((0.0,) * len(part), tuple(highest[part.start : part.stop].tolist()), (1,) * len(part)))
        for part in parts
    ]
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        outcome = sampling.settle(plan, WaveGroups.gather(told), plan.shards)
        sampling.after(outcome)
        outcome.to_json()
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds)
