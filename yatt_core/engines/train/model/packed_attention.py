"""Attention over samples that are concatenated in one row: each sample attends only to itself.

Consumes the queries, keys and values of a packed micro-batch and its runs of samples of equal length. A run
is one call of torch's causal attention, so nothing is padded and no mask is built. Registered with
transformers under `NAME`.
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
    """Attends within each sample; returns [1, tokens, heads, width].

    query: [1, heads, tokens, width].
    key, value: [1, heads, tokens, width], with as many heads as `query` or fewer.

    Raises `ConfigurationError` for a model that needs more than plain causal attention.
    """
    unknown = sorted(name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None)
    reaching_back = sliding_window is not None and max(tokens for _, tokens in runs) > sliding_window
    if attention_mask is not None or unknown or reaching_back:
        raise ConfigurationError(
            f"trainer.engine.packed: {type(module).__name__} needs more than plain causal attention; set it to false"
        )
    outputs = []
    start = 0
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
    """Makes a transformers model use `packed_attention` within the context.

    Raises `ConfigurationError` for a model that has layers other than attention, or whose attention cannot be
    replaced.
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if not model._supports_attention_backend or kinds - {"full_attention", "sliding_attention"}:
        raise ConfigurationError(
            f"trainer.engine.packed: {type(model).__name__} does not support packed samples; set it to false"
        )
    usual = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
