"""What a loss and a correction see: the counted tokens of a micro-batch, and the responses that they belong to.

Nothing here or in a method imports torch when it is loaded: methods are sections of the spec, which the command
line reads without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Responses:
    """The responses of T tokens, each of them whole.

    rows: [T], the response of each token, counted from 0.
    columns: [T], the token's place among its response's tokens.
    count, longest: number of responses, and tokens of the longest one.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    count: int
    longest: int

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Returns each token's sum over its response, [T]. Responses are added up in rows of their own, token by token.

        values: [T].
        """
        at = (self.rows, self.columns)
        table = values.new_zeros((self.count, self.longest)).index_put(at, values)
        return table.sum(1, keepdim=True).expand_as(table)[at]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Returns each token's mean over its response, [T]. values: [T]."""
        return self.total(values) / self.total(values.detach().new_ones(len(values)))


@dataclass(frozen=True, slots=True)
class PolicyTokens:
    """T counted tokens, each of the tensors [T].

    log_probs: of the weights that are being trained, with gradients.
    old: log-probabilities before the first step.
    sampler: log-probabilities recorded by the sampler.
    advantages: without gradients, as `old` and `sampler`.
    log_ratio, ratio: log_probs - old, bounded, and its exponential, with gradients.
    responses: None unless the method asks for whole responses.
    """

    log_probs: torch.Tensor
    old: torch.Tensor
    sampler: torch.Tensor
    advantages: torch.Tensor
    log_ratio: torch.Tensor
    ratio: torch.Tensor
    responses: Responses | None = None

    @property
    def whole(self) -> Responses:
        """The tokens' responses, for a method that sets `whole_responses`."""
        assert self.responses is not None, "the method does not set whole_responses"
        return self.responses


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """A method's result.

    values: [T], the loss of each token, with gradients; the step's loss is their weighted sum.
    clipped: [T], the tokens whose gradient the method has cut off or limited.
    """

    values: torch.Tensor
    clipped: torch.Tensor
