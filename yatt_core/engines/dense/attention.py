"""Attention that keeps its weights for the backward pass: for short sequences, where torch's own kernel is slower.

Consumes heads of equally long sequences; produces the attended values. Torch's kernel keeps no weights and so
needs less memory, which matters for long sequences, but it repacks its operands, most expensively in
bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch

from yatt_core.bfloat16.products import NATIVE, Products

LONGEST_KEPT = 256
"""Maximum number of keys for which the weights are kept."""


def attend_masked(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    products: Products = NATIVE,
) -> torch.Tensor:
    """Computes attention, [b, n, heads, size].

    queries: [b, n, heads, size].
    keys, values: [b, m, key/value heads, size].
    mask: [b, 1, n, m], 0 or -inf; None if n = m and attention is causal.
    """
    if keys.shape[1] <= LONGEST_KEPT:
        return _attend_keeping(queries, keys, values, _causal(queries) if mask is None else mask, products)
    if keys.device.type != "cpu":
        # GPU kernels for masks or float32 do not support shared heads; torch would fall back to materialising all scores.
        sharing = queries.shape[2] // keys.shape[2]
        keys, values = keys.repeat_interleave(sharing, dim=2), values.repeat_interleave(sharing, dim=2)
    return products.attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=queries.shape[2] != keys.shape[2],
    ).transpose(1, 2)


def _causal(queries: torch.Tensor) -> torch.Tensor:
    """Returns the causal mask, [b, 1, n, n]."""
    count = queries.shape[1]
    hidden = queries.new_full((count, count), -torch.inf, dtype=torch.float32).triu_(1)
    return hidden.expand(len(queries), 1, count, count)


def _attend_keeping(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, products: Products
) -> torch.Tensor:
    """Does what `attend_masked` does, with plain matrix products; queries that share keys are rows of one product."""
    batch, count, heads, size = queries.shape
    sharing = heads // keys.shape[2]
    rows = (
        queries.view(batch, count, -1, sharing, size).permute(0, 2, 3, 1, 4).reshape(batch, -1, sharing * count, size)
    )
    spread = mask.float().repeat(1, 1, sharing, 1)
    taken: torch.Tensor = _KeptWeights.apply(  # type: ignore[no-untyped-call]
        rows, keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous(), spread, products
    )
    return taken.view(batch, heads, count, size).transpose(1, 2)


class _KeptWeights(torch.autograd.Function):
    """Computes softmax(q k^T / sqrt(size) + mask) v over [b, heads, rows, size].

    Exponentials are float32; products have the dtype of q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        products: Products,
    ) -> Any:
        ctx.products = products
        scores = products.matmul(queries, keys.transpose(-1, -2))
        weights = torch.softmax(torch.add(mask, scores, alpha=queries.shape[-1] ** -0.5), dim=-1).to(queries.dtype)
        ctx.save_for_backward(queries, keys, values, weights)
        return products.matmul(weights, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        queries, keys, values, weights = ctx.saved_tensors
        (gradient,) = gradients
        multiply = ctx.products.matmul
        of_values = multiply(weights.transpose(-1, -2), gradient)
        of_weights, scale = multiply(gradient, values.transpose(-1, -2)), queries.shape[-1] ** -0.5
        # weight * (d L / d weight - sum over keys of weight * d L / d weight)
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_queries, of_keys = multiply(of_scores, keys), multiply(of_scores.transpose(-1, -2), queries)
        return of_queries.mul_(scale), of_keys.mul_(scale), of_values, None, None
