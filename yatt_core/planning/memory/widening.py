"""What trainers and reward models on cores hold in addition if products of bfloat16 are computed through float32.

Consumes the shapes of models and micro-batches; produces bytes. Counted is what the code holds on a processor without
instructions for bfloat16 (`yatt_core/bfloat16/`); one that has them needs none of it. The torch trainer's own kernels widen all
matrices for all micro-batches. Modules widen the operands of one product at a time, and the head for all of its chunks.
"""

from __future__ import annotations

from dataclasses import replace

from yatt_core.planning.account import Bytes
from yatt_core.planning.memory.activations import FLOAT, HALF, MicroBatchShape
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.memory.training import TrainerMemory
from yatt_core.planning.shape import ModelShape

ATTENDED, LEARNED = 4, 8
"""Float32 tensors of a token's queries that attention holds at once: its operands, repeated for each head, and its result;
backward, also the gradient of the result and those of the operands."""


def widened_pass(shape: ModelShape, batch: MicroBatchShape, *, learning: bool, tensor: int = 1) -> int:
    """Returns the bytes in float32 of a module's pass: of its largest product, or of the head.

    The logits of a chunk are float32 in any case, but for a moment.

    learning: whether gradients are computed, the head's among them.
    tensor: ranks among which matrices are divided.
    """
    layer = widened_layer(shape, batch.tokens, learning=learning, tensor=tensor)
    if not batch.counted:
        return layer
    head = -(-shape.vocabulary // tensor) * shape.hidden * FLOAT
    return max(layer, head * (2 if learning else 1))


def widened_layer(shape: ModelShape, tokens: int, *, learning: bool, tensor: int = 1) -> int:
    """Returns the bytes in float32 of a layer's largest product: operands and result of a matrix, or of attention."""
    width = max(shape.intermediate, shape.query_width) // tensor
    matrix = shape.hidden * width + tokens * (shape.hidden + width)
    attention = (LEARNED if learning else ATTENDED) * tokens * shape.query_width // tensor
    return FLOAT * max(matrix, attention)


def widened_kernels(shape: ModelShape, *, learning: bool) -> int:
    """Returns the bytes that the torch trainer's own kernels hold during a pass: all matrices in float32.

    learning: whether their copies in bfloat16 are counted already, with what autograd keeps.
    """
    matrices = shape.layers * shape.layer_matrices + shape.embedding_parameters
    return matrices * (FLOAT - HALF if learning else FLOAT)


def with_widened_passes(memory: TrainerMemory, prepare: int, learn: int) -> TrainerMemory:
    """Adds operands to what a trainer holds in `prepare` and `learn`, in bytes."""
    return replace(memory, prepare=memory.prepare + Bytes(copies=prepare), learn=memory.learn + Bytes(copies=learn))


def with_widened_layer(memory: EngineMemory, shape: ModelShape, tokens: int) -> EngineMemory:
    """Adds the operands of a reward model's largest product to what it holds while it judges."""
    operands = Bytes(copies=widened_layer(shape, tokens, learning=False))
    return replace(memory, awake=memory.awake + operands)
