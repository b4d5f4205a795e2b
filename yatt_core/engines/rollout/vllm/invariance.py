"""Whether an engine gives a response the same bits alone and in a crowd, asked of the engine itself.

Consumes an open engine; produces a yes or no. Which kernels run is decided by the card, the model and the number of tokens
in a step, so that nothing short of trying tells whether they add in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.engines.rollout.served.responses import Response, Step
from yatt_core.engines.rollout.vllm.settings import VllmSettings
from yatt_core.protocols.generation import GenerateRequest, Int32

LEAST_CROWD = 48
FEW = (1, 2, 3, 8)
"""Numbers of prompts that are answered together again: few rows are what other kernels are chosen for."""
NEW_TOKENS = 24
SHORT_PROMPT = 64
"""Tokens of all prompts but the longest at most."""
STEPS = 8
"""Of a call."""


class Answering(Protocol):
    """What is asked of an engine; see `VllmCore`."""

    def submit(self, request: GenerateRequest, names: Sequence[str], salt: str) -> None: ...

    def step(self, most: int) -> Step: ...


class Updated(Answering, Protocol):
    """An engine that can update its weights by themselves; see `VllmCore`. vocabulary: number of tokens."""

    @property
    def vocabulary(self) -> int: ...

    def load_again(self) -> None: ...


def is_invariant(engine: Updated, settings: VllmSettings, opening: Opening, processors: bool) -> bool:
    """Returns whether responses have the same bits in every batch.

    On processors that is declared for each type, since it depends on the processor whether bfloat16 has them. On GPUs it depends
    on the card, the model and the kernels that vLLM chooses for them, so that the engine is asked: it is in the mode for it
    (`environment.INVARIANT`) if that was asked for.
    """
    if processors:
        return settings.dtype == "float32" and settings.kv_cache_dtype == "auto"
    if not opening.invariant:
        return False
    # Updated weights lie in memory in another way than those of the start, and have other kernels: in bfloat16 on processors
    # vLLM 0.32 repeats its bits until the first update.
    engine.load_again()
    return repeats_in_a_crowd(engine, engine.vocabulary, longest=opening.longest, sequences=settings.max_num_seqs)


def repeats_in_a_crowd(engine: Answering, vocabulary: int, longest: int, sequences: int) -> bool:
    """Returns whether prompts have the same responses, to the last bit of their log-probabilities, in a few and in a crowd.

    The crowd fills the engine, and one of its prompts is as long as a prompt can be, so that it is read in several steps if any
    is. Prompts that are asked again under the same salt are found in the cache.

    vocabulary: number of tokens.
    longest: maximum number of tokens of a sequence, including its prompt.
    sequences: number of sequences of a step.
    """
    prompts = probe_prompts(vocabulary, longest, max(LEAST_CROWD, sequences))
    crowd = _answers(engine, prompts, "crowd")
    if _answers(engine, prompts[:LEAST_CROWD], "crowd") != crowd[:LEAST_CROWD]:
        return False
    for few in FEW:
        for start in range(0, len(prompts), len(prompts) // 4):
            members = slice(start, start + few)
            if _answers(engine, prompts[members], f"{few}-from-{start}") != crowd[members]:
                return False
    return True


def probe_prompts(vocabulary: int, longest: int, count: int) -> list[Int32]:
    """Returns prompts of different lengths, the longest first, each of which leaves room for at least one new token."""
    numbers = np.random.default_rng(0)
    most = max(1, longest - NEW_TOKENS)
    lengths = numbers.integers(1, min(SHORT_PROMPT, most) + 1, count)
    lengths[0] = most
    return [numbers.integers(0, vocabulary, length, dtype=np.int32) for length in lengths.tolist()]


def _answers(engine: Answering, prompts: Sequence[Int32], salt: str) -> list[tuple[bytes, bytes] | None]:
    """Returns tokens and log-probabilities of a response to each prompt; None for one that the engine could not give.

    The seed follows from the prompt, so that it is the same in every crowd.

    salt: prompts are found in the cache if they were answered under the same one.
    """
    request = GenerateRequest(
        prompts=prompts,
        seeds=np.array([[int(prompt.sum(dtype=np.int64))] for prompt in prompts], np.uint64),
        max_new_tokens=NEW_TOKENS,
        stop_tokens=(),
        weight_version=0,
    )
    names = [f"probe-{place}" for place in range(len(prompts))]
    engine.submit(request, names, salt)
    found: dict[str, tuple[bytes, bytes] | None] = {}
    while len(found) < len(names):
        for name, ended in engine.step(STEPS).ended:
            bits = (ended.tokens.tobytes(), ended.log_probs.tobytes()) if isinstance(ended, Response) else None
            found[name] = bits
    return [found[name] for name in names]
