"""Sizes of a first run that fit the data, the model and the machine: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PROMPTS = 64
SMALL_MODEL, MEDIUM_MODEL = 10**7, 10**8
"""Numbers of parameters up to which a larger learning rate is usual."""
PROMPT_STEP = 32
MOST_OF_CONTEXT = 0.75
"""Maximum fraction of the model's positions for the prompt, so that a response has room."""
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


def fitting_sizes(rows: int, longest: int, positions: int | None, parameters: int, devices: int) -> Sizes:
    """Returns sizes for the given number of rows, tokens of the longest prompt, and model.

    positions: None if the model has no limit.
    """
    prompts = _power_of_two(min(MOST_PROMPTS, max(1, rows - rows // 10 - 1)))
    response = 256 if parameters <= MEDIUM_MODEL else 1024
    prompt = -(-longest * 5 // 4 // PROMPT_STEP) * PROMPT_STEP or PROMPT_STEP
    if positions is not None:
        prompt = max(1, min(prompt, int(positions * MOST_OF_CONTEXT)))
        response = max(1, min(response, positions - prompt))
    rate = 1e-4 if parameters <= SMALL_MODEL else 1e-5 if parameters <= MEDIUM_MODEL else 1e-6
    return Sizes(prompts, max(1, prompts // 4), prompt, response, rate, devices, longest > prompt)


def fitting_devices(gpus: int, cores: int, memory: int, parameters: int) -> int:
    """Returns the number of engines and trainer ranks: all GPUs, or at most two processes that fit into host memory."""
    if gpus:
        return gpus
    return 2 if cores > 1 and 2 * BYTES_PER_PARAMETER * parameters < SHARE_OF_MEMORY * memory else 1


def _power_of_two(number: int) -> int:
    """Returns the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)
