"""What learning needs from a model and an optimizer, whether their tensors are whole, sharded, or divided into stages.

Consumes micro-batches. A pass computes log-probabilities of counted tokens on the ranks that have the model's
head, and propagates a loss back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from yatt_core.engines.train.model.forward import DistributionLoss, Float32, MicroBatch, Reader, TokenLoss
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers
from yatt_core.engines.train.ranks.collective import Collective


class TokenPasses(Protocol):
    """Runs a policy over micro-batches.

    Ranks that share a model make the same calls, each with the same number of micro-batches.
    """

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Returns each counted token's log-probability at the sampling temperature, per micro-batch, without gradients.

        With a model in stages, only ranks of the last stage know log-probabilities; the others return zeros.
        """
        ...

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        """Returns what a function reads from each counted token's distribution, per micro-batch, without gradients.

        With a model in stages, only ranks of the last stage know distributions; the others return an empty list.
        """
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens of a distribution."""
        ...

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        """Adds the gradients of the losses to the existing ones.

        temperature: overrides the sampling temperature.
        whole: whether `loss` needs all of a micro-batch's counted tokens at once.
        taught: a loss of whole distributions that is added to `loss`, called with successive parts of the counted tokens.

        `loss` is called where the log-probabilities are known, in order: with each micro-batch, or, unless `whole`, with
        successive parts of its counted tokens.
        """
        ...


class PolicyOptimizer(Protocol):
    """Owns a policy's weights and their gradients on this rank."""

    @property
    def parameters(self) -> int:
        """Number of the whole model's weights."""
        ...

    def zero(self) -> None:
        """Clears the gradients."""
        ...

    def reduce(self, collective: Collective) -> None:
        """Sums the gradients over the ranks, unless the passes have done so."""
        ...

    def scale(self, factor: float) -> None:
        """Multiplies the gradients."""
        ...

    def apply(self, learning_rate: float, loss: float) -> float:
        """Clips the gradients and takes one step. Returns the global norm before clipping.

        With a norm of 0, no step is taken: moments and weight decay would move weights although nothing is learned.

        loss: the step's loss over all ranks.

        Raises `NumericError`, before any weight changes, if the loss or the norm is not finite.
        """
        ...

    def reset(self) -> None:
        """Resets the optimizer: no moments, no steps. The weights stay unchanged."""
        ...

    def copy(self) -> Any:
        """Copies this rank's part of the weights, for later use with `exchanged`."""
        ...

    def exchanged(self, other: Any) -> AbstractContextManager[None]:
        """Replaces the model's weights temporarily with others from `copy`, then restores them."""
        ...
