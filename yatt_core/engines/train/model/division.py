"""Tells a causal model's body, which makes hidden states of tokens, from what makes logits of these."""

from __future__ import annotations

from typing import Any

from torch import nn

from yatt_core.errors import ConfigurationError


def divided(model: Any) -> tuple[Any, list[nn.Module], int]:
    """Returns the part of a model that turns tokens into hidden states, the other parts, and the head's outputs.

    Raises `ConfigurationError` for a model without output embeddings, or whose parts cannot be told apart.
    """
    name = type(model).__name__
    head: Any = model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise ConfigurationError(f"{name} has no output embeddings: it is not a causal language model")
    embedding = model.get_input_embeddings()
    bodies = [child for child in model.children() if any(module is embedding for module in child.modules())]
    if len(bodies) != 1 or bodies[0] is embedding:
        raise ConfigurationError(f"{name} does not keep its layers in one module next to its output embeddings")
    others = [child for child in model.children() if child is not bodies[0]]
    return bodies[0], others, int(model.get_output_embeddings().weight.shape[0])
