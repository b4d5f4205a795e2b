"""Activations that training keeps for the backward pass, and the peak memory of a forward pass without gradients.

Consumes the shapes of a model and a micro-batch; produces bytes. The sums follow the transformers modules, which the
torch trainer and FSDP2 run, tensor by tensor, as autograd keeps them. `megatron_activations.py` does the same for
Megatron-Core.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.engines.train.model.chunk_sizes import chunk_rows
from yatt_core.planning.shape import ModelShape

FLOAT = 4
HALF = 2
DISTRIBUTIONS = 3
"""Distributions of a chunk's tokens held at once: log-softmax, its exponential and their product, or gradients."""
SCORED_DISTRIBUTIONS = 2
"""Distributions of a chunk's tokens held at once in a pass without gradients: logits and log-softmax."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The shape of a micro-batch.

    rows: samples.
    tokens: number of tokens in all rows, padding included.
    counted: number of response tokens, for which distributions over the vocabulary are computed, in chunks.
    on_cores: whether it is processed on cores, where chunks are smaller than on a GPU.
    masked: whether tokens that the sampler could not draw are left out of distributions.
    """

    rows: int
    tokens: int
    counted: int
    on_cores: bool = True
    masked: bool = False

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


def torch_training(
    shape: ModelShape, batch: MicroBatchShape, dtype: str, entropy_gradient: bool, *, frozen: bool = False
) -> int:
    """Returns the peak bytes of a micro-batch's passes in the torch trainer, without the gradients of the weights.

    frozen: whether the model's own parameters, the head's among them, have no gradients.
    """
    tokens = batch.tokens
    of_head = shape.embedding_parameters * FLOAT if batch.counted and not frozen else 0
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

    Under bfloat16 autocast, norms compute in float32, and their output is kept separately for each matrix that it is
    multiplied with, together with a bfloat16 copy of the matrix.
    """
    half = dtype == "bfloat16"
    width = element_bytes(dtype)
    norm = 2 * FLOAT
    layers = shape.layers * batch.tokens * _layer_token(shape, width, norm, 5 if half else 2)
    casts = (shape.layers * shape.layer_matrices + shape.embedding_parameters) * HALF if half else 0
    return layers + batch.tokens * norm * shape.hidden + batch.counted * shape.hidden * width + casts


def _layer_token(shape: ModelShape, width: int, norm: int, inputs: int) -> int:
    """Returns the bytes per token that a layer keeps.

    width: bytes of a number outside the norms.
    norm: bytes of a number that a norm keeps: its input and its normalised value.
    inputs: how often a norm's output is kept, over both norms.
    """
    attention = (2 * shape.query_width + 2 * shape.key_value_width) * width
    if shape.head_norms:
        attention += (shape.query_width + shape.key_value_width) * norm
    small = (2 + shape.heads) * FLOAT
    return (2 * norm + inputs * width) * shape.hidden + attention + 4 * shape.intermediate * width + small


def torch_forward(shape: ModelShape, batch: MicroBatchShape, dtype: str) -> int:
    """Returns the peak bytes of a pass without gradients: a layer's values, or the head's distributions."""
    layer = batch.tokens * (shape.hidden + 4 * shape.intermediate) * element_bytes(dtype)
    return max(layer, SCORED_DISTRIBUTIONS * batch.chunk(shape.vocabulary) * shape.vocabulary * FLOAT)


def fsdp2_kept(shape: ModelShape, batch: MicroBatchShape, dtype: str, checkpointing: bool) -> int:
    """Returns the bytes that a rank of FSDP2 keeps until the backward pass, except for the head's distributions.

    checkpointing: whether a layer keeps only its input, and computes the rest again.
    """
    width = element_bytes(dtype)
    norm = FLOAT + width
    layer = _layer_token(shape, width, norm, 2)
    layers = shape.layers * shape.hidden * width + layer if checkpointing else shape.layers * layer
    return batch.tokens * (layers + norm * shape.hidden) + batch.counted * shape.hidden * width


def fsdp2_head(
    shape: ModelShape, batch: MicroBatchShape, dtype: str, entropy_gradient: bool, *, frozen: bool = False
) -> int:
    """Returns the bytes of a chunk's distributions and of the head's gradients: a chunk's, and their sum in float32.

    frozen: whether the head has no gradients.
    """
    if not batch.counted:
        return 0
    chunk = batch.chunk(shape.vocabulary)
    of_head = 0 if frozen else shape.embedding_parameters
    vocabulary = chunk * shape.vocabulary * FLOAT
    own = max(
        vocabulary * (DISTRIBUTIONS + (2 if entropy_gradient else 0)), vocabulary + of_head * element_bytes(dtype)
    )
    return own + (of_head * FLOAT if chunk < batch.counted else 0)
