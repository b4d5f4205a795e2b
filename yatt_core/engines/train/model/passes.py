"""What learning needs of a model and of an optimizer, wherever their tensors lie: whole, in shards, or in stages.

Consumes micro-batches; a pass gives log-probabilities of counted tokens to whoever has the model's head, and takes back a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from yatt_core.engines.train.model.forward import EntropyUse, Float32, MicroBatch, TokenLoss
from yatt_core.engines.train.ranks.collective import Collective


class TokenPasses(Protocol):
    """Runs a policy over micro-batches. Ranks that share a model make the same calls with as many micro-batches each."""

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Log-probability of each counted token of each micro-batch at the sampling temperature, without gradients.

        Of a model in stages only the ranks of the last one know them; the others get zeros.
        """
        ...

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
    ) -> None:
        """Adds the gradients of the losses to those that are there. temperature: another one than that of sampling.

        `loss` is called where the log-probabilities are known, once for each micro-batch, in order.
        """
        ...


class PolicyOptimizer(Protocol):
    """Owns a policy's weights and their gradients on this rank."""

    @property
    def parameters(self) -> int:
        """Number of the whole model's weights."""
        ...

    def zero(self) -> None:
        """Forgets the gradients."""
        ...

    def reduce(self, collective: Collective) -> None:
        """Adds the gradients up over the ranks, where the passes have not done so."""
        ...

    def apply(self, learning_rate: float, loss: float) -> float:
        """Clips the gradients and takes one step. Returns the global norm before clipping.

        loss: the step's loss over all ranks. Raises `NumericError`, before any weight changes, when it or the norm is
        not finite.
        """
        ...

    def reset(self) -> None:
        """Starts afresh: no moments, no steps. The weights stay."""
        ...

    def copy(self) -> Any:
        """This rank's part of the weights, to be lent to the model later."""
        ...

    def exchanged(self, other: Any) -> AbstractContextManager[None]:
        """Lends the model other weights, which `copy` gave, and puts its own back."""
        ...
