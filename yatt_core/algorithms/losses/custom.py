"""A loss of your own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from yatt_core.algorithms.losses.base import PolicyLoss
from yatt_core.algorithms.own import LOSSES, call, place_of
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses
from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.errors import ConfigurationError
from yatt_core.naming import Names


class CustomLoss(PolicyLoss):
    """A function of yours: (tokens: PolicyTokens, options: Mapping) -> TokenLosses. docs/algorithms.md has an example."""

    kind: Literal["custom"] = "custom"
    function: Annotated[str | None, Names("code")] = None
    """`package.module:function`, or the name of an entry point of the group `yatt.losses`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A function in a Python file, as `path/of/file.py:function`. The run keeps its own copy and executes only that."""
    options: Annotated[dict[str, Any], Names("code")] = Field(default_factory=dict)
    """Passed on unchanged."""
    responses: bool = False
    """Whether the function reads whole responses."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the function's source file; filled in when the spec is read. An exact run refuses another source; no run
    executes a `file` with other contents."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file)
        return self

    @property
    def whole_responses(self) -> bool:
        """See `PolicyLoss`."""
        return self.responses

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        import torch

        found = call(self, LOSSES, tokens, self.options)
        parts = [getattr(found, name, None) for name in ("values", "clipped")]
        sizes = [part.shape if isinstance(part, torch.Tensor) else type(part).__name__ for part in parts]
        if sizes != [tokens.log_probs.shape] * 2:
            raise ConfigurationError(
                f"{place_of(self, LOSSES)} returned {type(found).__name__} with shapes {sizes}; expected TokenLosses "
                f"with two tensors of {len(tokens.log_probs)} tokens"
            )
        if tokens.log_probs.requires_grad and torch.is_grad_enabled() and not found.values.requires_grad:
            raise ConfigurationError(
                f"{place_of(self, LOSSES)} returned losses without gradients, from which nothing is learned; expected "
                "a function of tokens.log_probs, log_ratio or ratio"
            )
        return found  # type: ignore[no-any-return]
