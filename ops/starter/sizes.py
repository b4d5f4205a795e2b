"""Sizes of a first run that fit the data, the model and the machine: pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_PROMPTS = 64
SMALL_MODEL = 10**7
MEDIUM_MODEL = 10**8
"""Numbers of parameters up to which a larger learning rate is usual."""
PROMPT_STEP = 32
MOST_OF_CONTEXT = 0.75
"""Maximum fraction of the model's positions for the prompt, so that a response has room."""
LONGER = 5 / 4
"""How much longer a prompt or a response may be than the longest one seen."""
EPOCHS = {"sft": 3, "dpo": 1, "simpo": 1, "kto": 1, "reward_model": 1}
"""Usual passes over the rows for what is learnt from rows."""
RATES = {
    "rl": (1e-4, 1e-5, 1e-6),
    "sft": (1e-3, 1e-4, 1e-5),
    "dpo": (1e-4, 5e-6, 5e-7),
    "simpo": (1e-4, 5e-6, 5e-7),
    "kto": (1e-4, 5e-6, 5e-7),
    "reward_model": (1e-3, 1e-4, 1e-5),
}
"""Usual learning rates for small, medium and larger models."""
ITERATIONS = 200
"""Of a run that samples, and of rows whose number is not known."""
BYTES_PER_PARAMETER = 4 + 16
"""Of an engine (float32 weights) and a trainer rank (weights, gradients, the two moments of AdamW)."""
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a first spec; the names are those of the spec's keys.

    devices: `rollout.engine.instances` and `trainer.engine.ranks`.
    skips: True if some prompts are longer than `max_prompt_tokens`.
    """

    prompts_per_iteration: int
    logical_shards: int
    max_prompt_tokens: int
    max_new_tokens: int
    learning_rate: float
    devices: int
    skips: bool
    iterations: int = ITERATIONS


def fitting_sizes(rows: int, longest: int, positions: int | None, parameters: int, devices: int) -> Sizes:
    """Returns sizes for the given number of rows, tokens of the longest prompt, and model.

    positions: None if the model has no limit.
    """
    prompts = _prompts(rows)
    response = 256 if parameters <= MEDIUM_MODEL else 1024
    prompt = _stepped(longest * LONGER)
    if positions is not None:
        prompt = max(1, min(prompt, int(positions * MOST_OF_CONTEXT)))
        response = max(1, min(response, positions - prompt))
    return Sizes(
        prompts_per_iteration=prompts,
        logical_shards=max(1, prompts // 4),
        max_prompt_tokens=prompt,
        max_new_tokens=response,
        learning_rate=_rate("rl", parameters),
        devices=devices,
        skips=longest > prompt,
    )


def learnt_sizes(
    objective: str,
    rows: int,
    complete: bool,
    longest: tuple[int, int],
    positions: int | None,
    parameters: int,
    devices: int,
) -> Sizes:
    """Returns sizes of a run that learns from its rows.

    objective: the objective's kind.
    rows, complete: number of rows, and whether there are no more.
    longest: tokens of the longest prompt and of the longest response.
    positions: None if the model has no limit.
    """
    prompts = _prompts(rows)
    prompt, response = (_stepped(tokens * LONGER) for tokens in longest)
    if positions is not None and prompt + response > positions:
        prompt = max(1, min(prompt, int(positions * longest[0] / max(1, sum(longest)))))
        response = max(1, positions - prompt)
    passes = -(-rows * EPOCHS[objective] // prompts)
    return Sizes(
        prompts_per_iteration=prompts,
        logical_shards=max(1, prompts // 4),
        max_prompt_tokens=prompt,
        max_new_tokens=response,
        learning_rate=_rate(objective, parameters),
        devices=devices,
        skips=longest[0] > prompt or longest[1] > response,
        iterations=passes if complete else ITERATIONS,
    )


def fitting_devices(gpus: int, cores: int, memory: int, parameters: int) -> int:
    """Returns the number of engines and trainer ranks: all GPUs, or at most two processes that fit into host memory."""
    if gpus:
        return gpus
    return 2 if cores > 1 and 2 * BYTES_PER_PARAMETER * parameters < SHARE_OF_MEMORY * memory else 1


def _prompts(rows: int) -> int:
    return _power_of_two(min(MOST_PROMPTS, max(1, rows - rows // 10 - 1)))


def _stepped(tokens: float) -> int:
    """Returns a number of tokens, rounded up to a whole step."""
    return max(1, math.ceil(tokens / PROMPT_STEP)) * PROMPT_STEP


def _rate(objective: str, parameters: int) -> float:
    small, medium, large = RATES[objective]
    return small if parameters <= SMALL_MODEL else medium if parameters <= MEDIUM_MODEL else large


def _power_of_two(number: int) -> int:
    """Returns the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)
