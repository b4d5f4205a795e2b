"""What the attention of aligned engines holds in addition to that of others: masks, whole pieces of keys, a block of scores.

Consumes the shapes of models, micro-batches and prompts; produces bytes. The sums follow `engines/dense/aligned.py` and the
code that calls it. Scores are in proportion to the number of keys; a mask is to that of queries times keys, but there is one for
all layers.
"""

from __future__ import annotations

from dataclasses import replace

from yatt_core.engines.dense.pieces import QUERY_BLOCK, whole_pieces
from yatt_core.planning.account import Bytes
from yatt_core.planning.memory.activations import FLOAT, MicroBatchShape, element_bytes
from yatt_core.planning.memory.training import TrainerMemory
from yatt_core.planning.shape import ModelShape

SCORES = 2
LEARNED_SCORES = 3
"""Tensors of a block's scores held at once: scores and masses; backward, weights, their gradients and those of the scores."""
LEARNED_OPERANDS = 3
"""Float32 tensors of the keys' shape that a backward pass holds at once: gradients of keys and values, and a block's part."""
STEP_SCORES = 4
"""Tensors of a decode step's scores held at once: a group's, a row's with its prompt, with its own slots, and with both."""


def aligned_pass(shape: ModelShape, batch: MicroBatchShape, dtype: str, *, learning: bool) -> int:
    """Returns the bytes that a pass of the aligned trainer holds in addition to what is counted of any.

    batch: of equally long samples, whose prompts are the same or differ.
    learning: whether gradients are computed.
    """
    response = batch.counted // batch.rows
    prompt = batch.tokens // batch.rows - response + 1
    width = element_bytes(dtype)
    prompt_slots = whole_pieces(prompt)
    slots = prompt_slots + whole_pieces(response)
    mask = FLOAT * (batch.rows * response * slots + prompt * prompt_slots)
    # Prompts attend to keys of their own; in other kernels each sample has the keys of its tokens, and no more.
    keys = batch.rows * (slots + prompt_slots)
    key_values = 2 * shape.key_value_width
    padding = max(0, keys - batch.tokens) * key_values * width * (shape.layers if learning else 1)
    operands = LEARNED_OPERANDS * shape.key_value_width if learning else 0
    operands += key_values if width < FLOAT else 0
    scores = shape.heads * max(min(QUERY_BLOCK, response) * slots, min(QUERY_BLOCK, prompt) * prompt_slots)
    scores *= LEARNED_SCORES if learning else SCORES
    return mask + padding + FLOAT * batch.rows * (scores + slots * operands)


def with_aligned_passes(memory: TrainerMemory, shape: ModelShape, batch: MicroBatchShape, dtype: str) -> TrainerMemory:
    """Adds the attention of an aligned trainer to what it holds in `prepare` and `learn`."""
    prepare = Bytes(activations=aligned_pass(shape, batch, dtype, learning=False))
    learn = Bytes(activations=aligned_pass(shape, batch, dtype, learning=True))
    return replace(memory, prepare=memory.prepare + prepare, learn=memory.learn + learn)


def aligned_prefill(shape: ModelShape, prompts: int, padded: int) -> int:
    """Returns the bytes that attention holds in a prefill of the aligned sampler.

    prompts: read at once.
    padded: tokens of each.
    """
    slots = whole_pieces(padded)
    scores = SCORES * shape.heads * min(QUERY_BLOCK, padded) * slots
    operands = 2 * slots * shape.key_value_width
    return FLOAT * (padded * slots + prompts * (scores + operands))


def aligned_step(shape: ModelShape, rows: int, slots: int) -> int:
    """Returns the bytes that attention holds in a decode step of the aligned sampler.

    slots: of a row, its prompt's included.
    """
    return FLOAT * STEP_SCORES * rows * shape.heads * slots
