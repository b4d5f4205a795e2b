"""Activations that training keeps for the backward pass, and the peak memory of a forward pass without gradients.

Consumes the shapes of a model and a micro-batch; produces bytes. For the torch trainer, the sums follow the
transformers modules tensor by tensor, as autograd keeps them. For Megatron-Core and FSDP2, activations are counted as
in arXiv 2205.05198, for gated feed-forward layers and attention that does not store scores (arXiv 2205.14135).
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.engines.train.model.chunk_sizes import chunk_rows
from yatt_core.planning.shape import ModelShape

FLOAT, HALF = 4, 2
DISTRIBUTIONS = 3
"""Distributions of a chunk's tokens held at once: log-softmax, its exponential and their product, or gradients."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The shape of a micro-batch.

    rows: samples.
    tokens: number of tokens in all rows, padding included.
    counted: number of response tokens, for which distributions over the vocabulary are computed, in chunks.
    on_cores: whether it is processed on cores, where chunks are smaller than on a GPU.
    """

    rows: int
    tokens: int
    counted: int
    on_cores: bool = True

    def chunk(self, vocabulary: int) -> int:
        """Returns the number of tokens whose distributions exist at once."""
        return min(self.counted, chunk_rows(vocabulary, self.on_cores))


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
    tokens, of_head = batch.tokens, shape.embedding_parameters * FLOAT if batch.counted else 0
    kept = _torch_kept(shape, batch, dtype)
    feed_forward = tokens * (shape.hidden + shape.intermediate) * FLOAT + shape.hidden * shape.intermediate * FLOAT
    # The head's gradient is added to the others with the embedding's, if these are one parameter.
    feed_forward += of_head if shape.tied else 0
    chunk = batch.chunk(shape.vocabulary)
    vocabulary = chunk * shape.vocabulary * FLOAT
    head = max(vocabulary * (DISTRIBUTIONS + (2 if entropy_gradient else 0)), vocabulary + of_head)
    # Gradients of several chunks are added up.
    head += of_head if chunk < batch.counted else 0
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
    return max(layer, DISTRIBUTIONS * batch.chunk(shape.vocabulary) * shape.vocabulary * FLOAT)


def sharded_layer(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Returns the bytes per token that a layer keeps on each of its devices."""
    whole = 4 * shape.hidden
    divided = 2 * shape.query_width + 2 * shape.key_value_width + 3 * shape.intermediate
    statistics = FLOAT * shape.heads / tensor
    return element_bytes(dtype) * (whole / (tensor if sequence_parallel else 1) + divided / tensor) + statistics


def sharded_head(shape: ModelShape, batch: MicroBatchShape, tensor: int, dtype: str) -> int:
    """Returns the bytes of a chunk's distributions on each of `tensor` devices: logits, and float32 distributions."""
    own = -(-shape.vocabulary // tensor)
    return batch.chunk(own) * own * (element_bytes(dtype) + DISTRIBUTIONS * FLOAT)


def head_gradients(shape: ModelShape, batch: MicroBatchShape, tensor: int, dtype: str) -> int:
    """Returns the bytes of a device's gradients of the head: a chunk's, and the float32 sum if there are several.

    Without counted tokens, as for a critic, there is no head of the vocabulary's size.
    """
    if not batch.counted:
        return 0
    several = batch.chunk(-(-shape.vocabulary // tensor)) < batch.counted
    return round(shape.embedding_parameters / tensor * (element_bytes(dtype) + (FLOAT if several else 0)))


def sharded_input(shape: ModelShape, tensor: int, sequence_parallel: bool, dtype: str) -> float:
    """Returns the bytes per token of a layer's input, which is what full recomputation keeps."""
    return element_bytes(dtype) * shape.hidden / (tensor if sequence_parallel else 1)
