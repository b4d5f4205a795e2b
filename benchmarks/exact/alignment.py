"""How far is an aligned trainer's log-probability from the sampler's, at most?

Consumes responses that an aligned sampler has drawn, token by token; produces the largest difference from what the trainer's own
forward pass computes from their tokens and its weights alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exact.work import SAMPLES, learn, request_of, sampler_of, send, spec_of, trainer_of
from benchmarks.experience import seal_responses
from yatt_core.engines.train.model.forward import assemble
from yatt_core.experience.batch import load_batch

RESPONSES = 1000
MICRO_BATCHES = 7
UPDATES = 2
"""Updates before the last comparison, so that weights are compared that have been learnt and sent."""


def aligned_gap_max(dtype: str, folder: Path, model: Path) -> tuple[float, int]:
    """Returns the largest difference over at least `RESPONSES` responses, and the number of their tokens."""
    folder.mkdir()
    spec = spec_of(dtype, exact="aligned")
    sampler = sampler_of(spec, model)
    trainer: Any = trainer_of(spec, folder, model)
    prompts = -(-RESPONSES // (SAMPLES * (UPDATES + 1)))
    widest = 0.0
    tokens = 0
    for iteration in range(1, UPDATES + 2):
        send(trainer, sampler)
        request = request_of(iteration, prompts)
        task = seal_responses(folder, iteration, request, sampler.generate(request))
        batch = load_batch(folder, task.shards)
        order = np.random.default_rng(iteration).permutation(len(batch))
        for part in np.array_split(order, MICRO_BATCHES):
            read = assemble(batch, part)
            (found,) = trainer.policy.forward.score([read])
            gap = np.abs(found.astype(np.float64) - batch.log_probs_sampler[read.positions])
            widest = max(widest, float(gap.max()))
            tokens += len(gap)
        if iteration <= UPDATES:
            learn(trainer, task)
    return widest, tokens
