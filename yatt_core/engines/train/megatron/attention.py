"""Attention for Megatron-Core through torch's scaled dot product, with its flash kernels where they exist.

Consumes queries, keys and values of padded rows; produces what each token attends to. Rows are padded on the right
and attention is causal, so no mask is needed: memory grows with the length, not with its square.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class CausalAttention(nn.Module):
    """Takes the place of Megatron-Core's own attention in the specification of a layer."""

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **_: Any
    ) -> torch.Tensor:
        """Attends within each row; returns [length, rows, heads * size].

        query: [length, rows, heads, size].
        key, value: [length, rows, heads, size], with as many heads as `query` or fewer.
        """
        assert attention_mask is None, "a mask would be ignored"
        q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self._scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return attended.permute(2, 0, 1, 3).flatten(2)
