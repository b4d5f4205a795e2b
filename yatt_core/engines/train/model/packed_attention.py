"""Attention over samples that stand behind one another in one row: each sees itself alone.

Consumes the queries, keys and values of a packed micro-batch and the runs of samples of equal length in it; a run is one call of
torch's causal attention, so that nothing is padded and no mask is made. Registered with transformers under `NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from yatt_core.errors import ConfigurationError

NAME = "yatt_packed"

Runs = tuple[tuple[int, int], ...]
"""(samples, tokens of each), in the order of the row."""


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    runs: Runs,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, heads, tokens, width]; key, value: as many heads or fewer. Returns [1, tokens, heads, width].

    Raises `ConfigurationError` for a model whose attention wants something else besides.
    """
    unknown = sorted(name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None)
    reaching_back = sliding_window is not None and max(tokens for _, tokens in runs) > sliding_window
    if attention_mask is not None or unknown or reaching_back:
        raise ConfigurationError(
            f"trainer.engine.packed: {type(module).__name__} wants more than plain causal attention; write false"
        )
    outputs, start = [], 0
    for samples, tokens in runs:
        q, k, v = (
            part[0, :, start : start + samples * tokens].reshape(-1, samples, tokens, part.shape[-1]).transpose(0, 1)
            for part in (query, key, value)
        )
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
        start += samples * tokens
    return torch.cat(outputs)[None], None


AttentionInterface.register(NAME, packed_attention)


@contextmanager
def attending_by_sample(model: Any) -> Iterator[None]:
    """A model of transformers whose attention is `packed_attention` meanwhile.

    Raises `ConfigurationError` for one that has layers besides attention, or does not let its attention be exchanged.
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if not model._supports_attention_backend or kinds - {"full_attention", "sliding_attention"}:
        raise ConfigurationError(
            f"trainer.engine.packed: {type(model).__name__} cannot take packed samples; write false"
        )
    usual = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
