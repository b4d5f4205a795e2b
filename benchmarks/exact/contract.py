"""Does the contract of exactness hold? Runs it: a run ended and resumed in other engines, or an answer alone and in a crowd.

Consumes a spec, or a rollout engine; produces verdicts. Nothing is taken from what engines say of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.exact.work import PROMPT, VOCABULARY, Loop
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.spec import RunSpec

ITERATIONS = 3
KILLED_AFTER = 1
CROWD = 48
MOST_NEW = 24
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of prompts in the batches that are compared with the crowd."""


def resumed_run_is_the_same(spec: RunSpec, folder: Path, model: Path) -> bool:
    """Returns whether a run that ends in the middle, and goes on in new engines, has the bits of an undisturbed one.

    Before it goes on, its engines do other work, whose traces must not matter.
    """
    undisturbed = Loop(spec, folder / "undisturbed", model)
    expected = [undisturbed.take() for _ in range(ITERATIONS)]
    ended = Loop(spec, folder / "ended", model)
    found = [ended.take() for _ in range(KILLED_AFTER)]
    saved = ended.save(folder / "checkpoint")
    resumed = Loop(spec, folder / "resumed", model)
    resumed.take()
    resumed.restore(saved, KILLED_AFTER)
    found += [resumed.take() for _ in range(ITERATIONS - KILLED_AFTER)]
    return found == expected


def rows_of(result: GenerateResult) -> list[tuple[bytes, bytes]]:
    """Returns the bits of each response's tokens and log-probabilities."""
    ends = np.cumsum(result.lengths)[:-1]
    pairs = zip(np.split(result.tokens, ends), np.split(result.log_probs, ends), strict=True)
    return [(tokens.tobytes(), log_probs.tobytes()) for tokens, log_probs in pairs]


def smallest_differing_batch(engine: RolloutEngine, vocabulary: int = VOCABULARY) -> int | None:
    """Returns the fewest prompts in a batch whose answers differ from those of the same prompts in a crowd; None if none do.

    vocabulary: tokens below it, from 2 on, make the prompts.
    """
    noise = np.random.default_rng(0)
    prompts = [
        noise.integers(2, vocabulary, length).astype(np.int32) for length in noise.integers(1, PROMPT + 1, CROWD)
    ]
    seeds = noise.integers(0, 2**63, (CROWD, 1)).astype(np.uint64)

    def answers(members: Sequence[int]) -> list[tuple[bytes, bytes]]:
        request = GenerateRequest(
            prompts=[prompts[member] for member in members],
            seeds=seeds[list(members)],
            max_new_tokens=MOST_NEW,
            stop_tokens=(),
            weight_version=engine.version,
        )
        return rows_of(engine.generate(request))

    crowd = answers(range(CROWD))
    for size in SIZES:
        for start in range(0, CROWD - size + 1, max(size, CROWD // 4)):
            members = range(start, start + size)
            if answers(members) != [crowd[member] for member in members]:
                return size
    return None
