"""Activations that training keeps for the backward pass, and what a forward pass without one needs at its fullest.

Consumes a model's shape and a micro-batch's; produces bytes. For the torch trainer the sums follow the modules of transformers
tensor by tensor, as autograd keeps them; for Megatron-Core and FSDP2 the way of counting is that of arXiv 2205.05198, for gated
feed-forward layers and attention that keeps no scores (arXiv 2205.14135).
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.planning.shape import ModelShape

FLOAT, HALF = 4, 2
DISTRIBUTIONS = 3
"""Whole distributions over the vocabulary that live at once: log-softmax, its exponential and their product, or gradients."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """rows: samples. tokens: of all rows, padding included. counted: response tokens, whose distributions are computed."""

    rows: int
    tokens: int
    counted: int


def micro_batch_of(budget: int, samples: int, prompt: int, response: int) -> MicroBatchShape:
    """The largest micro-batch of samples of that length. budget: most tokens. samples: that a rank has for a step."""
    rows = max(1, min(samples, budget // max(1, prompt + response)))
    return MicroBatchShape(rows, rows * (prompt + response - 1), rows * response)


def element_bytes(dtype: str) -> int:
    """Bytes of a number of the precision."""
    return HALF if dtype == "bfloat16" else FLOAT


def torch_training(shape: ModelShape, batch: MicroBatchShape, dtype: str, entropy_gradient: bool) -> int:
    """Most bytes of a micro-batch's forward and backward pass by the torch trainer, weights' gradients left out."""
    tokens, vocabulary = batch.tokens, batch.counted * shape.vocabulary * FLOAT
    kept = _torch_kept(shape, batch, dtype)
    feed_forward = tokens * (shape.hidden + shape.intermediate) * FLOAT + shape.hidden * shape.intermediate * FLOAT
    head = vocabulary * (DISTRIBUTIONS + (2 if entropy_gradient else 0))
    return kept + max(head, feed_forward)


def _torch_kept(shape: ModelShape, batch: MicroBatchShape, dtype: str) -> int:
    """What autograd keeps until the backward pass, the head's distributions left out.

    A norm keeps its input and the normed values in float32, all else what the next matrix takes: under autocast in bfloat16, once
    for every matrix that takes it, with a bfloat16 copy of the matrix.
    """
    tokens, width = batch.tokens, element_bytes(dtype)
    half = dtype == "bfloat16"
    norms = 2 * shape.hidden * FLOAT
    taken = (5 if half else 2) * shape.hidden * width
    attention = (2 * shape.query_width + 2 * shape.key_value_width) * width
    feed_forward = 4 * shape.intermediate * width
    if shape.head_norms:
        attention += 2 * (shape.query_width + shape.key_value_width) * FLOAT
    small = (2 + shape.heads) * FLOAT
    layers = shape.layers * tokens * (2 * norms + taken + attention + feed_forward + small)
    casts = (shape.layers * shape.layer_matrices + shape.embedding_parameters) * HALF if half else 0
    return layers + tokens * norms + batch.counted * shape.hidden * width + casts


def torch_forward(shape: ModelShape, batch: MicroBatchShape, dtype: str) -> int:
    """Most bytes of a pass without gradients: a layer's values, or the head's distributions."""
    layer = batch.tokens * (shape.hidden + 4 * shape.intermediate) * element_bytes(dtype)
    return max(layer, DISTRIBUTIONS * batch.counted * shape.vocabulary * FLOAT)


def sharded_layer(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Bytes that a layer keeps for each token on each of its devices."""
    whole = 4 * shape.hidden
    divided = 2 * shape.query_width + 2 * shape.key_value_width + 3 * shape.intermediate
    statistics = FLOAT * shape.heads / tensor
    return element_bytes(dtype) * (whole / (tensor if sequence_parallel else 1) + divided / tensor) + statistics


def sharded_head(shape: ModelShape, tokens: int, tensor: int, dtype: str) -> int:
    """Bytes of the distributions behind all tokens: logits, their float32 softmax, and its gradient."""
    return round(tokens * shape.vocabulary / tensor * (element_bytes(dtype) + 2 * FLOAT))


def sharded_input(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Bytes of a layer's input for each token: what full recomputation keeps."""
    return element_bytes(dtype) * shape.hidden / (tensor if sequence_parallel else 1)
