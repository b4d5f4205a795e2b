"""Activations that training keeps for the backward pass, and the peak memory of a forward pass without gradients.

Consumes the shapes of a model and a micro-batch; produces bytes. For the torch trainer, the sums follow the
transformers modules tensor by tensor, as autograd keeps them. For Megatron-Core and FSDP2, activations are counted as
in arXiv 2205.05198, for gated feed-forward layers and attention that does not store scores (arXiv 2205.14135).
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.planning.shape import ModelShape

FLOAT, HALF = 4, 2
DISTRIBUTIONS = 3
"""Distributions over the vocabulary held at once: log-softmax, its exponential and their product, or gradients."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The shape of a micro-batch.

    rows: samples.
    tokens: number of tokens in all rows, padding included.
    counted: number of response tokens, for which distributions over the vocabulary are computed.
    """

    rows: int
    tokens: int
    counted: int


def micro_batch_of(budget: int, samples: int, prompt: int, response: int) -> MicroBatchShape:
    """Returns the largest micro-batch of samples of this length.

    budget: maximum number of tokens.
    samples: number of samples that a rank has for a step.
    """
    rows = max(1, min(samples, budget // max(1, prompt + response)))
    return MicroBatchShape(rows, rows * (prompt + response - 1), rows * response)


def element_bytes(dtype: str) -> int:
    """Returns the bytes of a number in this precision."""
    return HALF if dtype == "bfloat16" else FLOAT


def torch_training(shape: ModelShape, batch: MicroBatchShape, dtype: str, entropy_gradient: bool) -> int:
    """Returns the peak bytes of a micro-batch's passes in the torch trainer, without the gradients of the weights."""
    tokens, vocabulary = batch.tokens, batch.counted * shape.vocabulary * FLOAT
    kept = _torch_kept(shape, batch, dtype)
    feed_forward = tokens * (shape.hidden + shape.intermediate) * FLOAT + shape.hidden * shape.intermediate * FLOAT
    head = vocabulary * (DISTRIBUTIONS + (2 if entropy_gradient else 0))
    return kept + max(head, feed_forward)


def _torch_kept(shape: ModelShape, batch: MicroBatchShape, dtype: str) -> int:
    """Returns the bytes that autograd keeps until the backward pass, except for the head's distributions.

    For a norm, these are its input and the normalised values in float32; for everything else, the input of the
    next matrix. Under bfloat16 autocast, this input is kept separately for each matrix that it is multiplied
    with, together with a bfloat16 copy of the matrix.
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
    """Returns the peak bytes of a pass without gradients: a layer's values, or the head's distributions."""
    layer = batch.tokens * (shape.hidden + 4 * shape.intermediate) * element_bytes(dtype)
    return max(layer, DISTRIBUTIONS * batch.counted * shape.vocabulary * FLOAT)


def sharded_layer(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Returns the bytes per token that a layer keeps on each of its devices."""
    whole = 4 * shape.hidden
    divided = 2 * shape.query_width + 2 * shape.key_value_width + 3 * shape.intermediate
    statistics = FLOAT * shape.heads / tensor
    return element_bytes(dtype) * (whole / (tensor if sequence_parallel else 1) + divided / tensor) + statistics


def sharded_head(shape: ModelShape, tokens: int, tensor: int, dtype: str) -> int:
    """Returns the bytes of the distributions at `tokens` positions: logits, their float32 softmax, and its gradient."""
    return round(tokens * shape.vocabulary / tensor * (element_bytes(dtype) + 2 * FLOAT))


def sharded_input(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Returns the bytes per token of a layer's input, which is what full recomputation keeps."""
    return element_bytes(dtype) * shape.hidden / (tensor if sequence_parallel else 1)
