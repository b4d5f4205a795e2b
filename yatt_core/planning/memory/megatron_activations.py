"""Activations of Megatron-Core's layers as this project builds them: its own modules, torch's norm and attention.

Consumes the shapes of a model and a micro-batch, and how the model is divided; produces bytes on one device. The sums
follow the tensors that autograd keeps. On a GPU, norms and the gated activation are fused kernels, which keep less.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.planning.memory.activations import FLOAT, MicroBatchShape, element_bytes
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import MegatronTrainer

LEARNING = 6
SCORING = 3
"""Float32 distributions of a chunk's tokens held at once. Scoring: logits divided by the temperature, shifted,
exponentials, and one more if some tokens are masked. Learning: also the logits, and for the entropy two more."""
ENTROPY_GRADIENT = 2
WORKING = 5
"""Values per token and width of the model that a layer's backward pass holds, the gathered input included."""
PASSING = 4
"""Values per token that a layer's forward pass holds, for the width of the model and for the feed-forward layer's."""


@dataclass(frozen=True, slots=True)
class MegatronActivations:
    """What one device holds of a micro-batch."""

    engine: MegatronTrainer
    shape: ModelShape
    batch: MicroBatchShape

    @property
    def _width(self) -> int:
        return element_bytes(self.engine.dtype)

    @property
    def _tensor(self) -> int:
        return self.engine.tensor_model_parallel_size

    @property
    def _rows(self) -> int:
        """Columns of the vocabulary on a device."""
        return -(-self.shape.vocabulary // self._tensor)

    @property
    def _hidden(self) -> float:
        """Numbers per token of a value of the model's width outside the matrices, which sequence parallelism divides."""
        return self.shape.hidden / (self._tensor if self.engine.sequence_parallel else 1)

    @property
    def _norm(self) -> int:
        """Bytes of a number that a norm keeps: its input, its output, and on cores its normalised value in float32."""
        return 2 * FLOAT + self._width if self.batch.on_cores else 2 * self._width

    def layer(self) -> float:
        """Returns the bytes that a layer keeps.

        Queries, keys and values are kept as one matrix, and queries and keys again with their positions; the
        feed-forward layer keeps both halves and their product, and on cores also what the product is computed from.
        """
        shape = self.shape
        width = self._width
        tensor = self._tensor
        heads = 3 * (shape.query_width + shape.key_value_width) * width
        if shape.head_norms:
            heads += (shape.query_width + shape.key_value_width) * self._norm
        feed_forward = (5 if self.batch.on_cores else 3) * shape.intermediate * width
        divided = (heads + feed_forward + FLOAT * shape.heads) / tensor
        positions = 4 * shape.head_size * width / self.batch.rows
        return self.batch.tokens * (2 * self._norm * self._hidden + divided + positions)

    def layer_input(self) -> float:
        """Returns the bytes of a layer's input, which is what full recomputation keeps."""
        return self.batch.tokens * self._hidden * self._width

    def backward(self) -> int:
        """Returns the bytes that a layer's backward pass takes in addition to what is kept."""
        return WORKING * self.batch.tokens * self.shape.hidden * self._width

    def ends(self, entropy_gradient: bool) -> float:
        """Returns the bytes of the last stage's final norm, and of a chunk's distributions with the head's gradients."""
        batch = self.batch
        shape = self.shape
        final = batch.tokens * self._norm * self._hidden + 2 * batch.counted * shape.hidden * self._width
        if not batch.counted:
            return final
        several = batch.chunk(self._rows) < batch.counted
        of_head = shape.hidden * self._rows * (self._width + (FLOAT if several else 0))
        held = LEARNING + (ENTROPY_GRADIENT if entropy_gradient else 0)
        return final + held * self._distribution() + of_head

    def scoring(self) -> int:
        """Returns the peak bytes of a pass without gradients: a layer's values, or the head's distributions."""
        widths = self.shape.hidden + self.shape.intermediate / self._tensor
        layer = PASSING * widths * self._width * self.batch.tokens
        masks = self.batch.masked or self.shape.vocabulary % self._tensor > 0
        return round(max(layer, (SCORING + masks) * self._distribution() + self.layer_input()))

    def _distribution(self) -> int:
        return self.batch.chunk(self._rows) * self._rows * FLOAT
