"""The layers of a dense model over rows of tokens; the caller supplies the attention between rows.

Consumes `DenseWeights` and embedded rows; produces the residual stream after the last layer. Both
training and prefill run this code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear

from yatt_core.engines.dense.arithmetic import rms_norm, rotate, swiglu
from yatt_core.engines.dense.shape import DenseShape
from yatt_core.engines.dense.weights import DenseWeights, LayerWeights

Attend = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, heads [rows, queries + keys + values, size], rotated by position) -> attended [rows, queries * size]."""
Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Does what `torch.nn.functional.linear` does, for weights in the caller's layout."""


def run_layers(
    weights: DenseWeights,
    shape: DenseShape,
    hidden: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    attend: Attend,
    dtype: torch.dtype,
    multiply: Multiply = linear,
) -> torch.Tensor:
    """Returns the residual stream after the last layer, [rows, width] in float32.

    hidden: embedded tokens, [rows, width] in float32.
    rotary: cosine and sine of the rows' positions, [rows, 1, size].
    dtype: of the products.
    multiply: multiplies rows by the layers' matrices.
    """
    for number, layer in enumerate(weights.layers):
        normed = rms_norm(hidden, layer.norm, shape.epsilon, dtype)
        heads = multiply(normed, layer.qkv, layer.qkv_bias).view(len(hidden), shape.all_heads, shape.head_size)
        heads = rotate(_normed_heads(layer, shape, heads), *rotary, shape.rotated)
        hidden = hidden + multiply(attend(number, heads), layer.out, layer.out_bias)
        normed = rms_norm(hidden, layer.mlp_norm, shape.epsilon, dtype)
        hidden = hidden + multiply(
            swiglu(multiply(normed, layer.gate_up, layer.gate_up_bias)), layer.down, layer.down_bias
        )
    return hidden


def _normed_heads(layer: LayerWeights, shape: DenseShape, heads: torch.Tensor) -> torch.Tensor:
    """Normalises queries and keys head by head, if the architecture does so (Qwen3)."""
    if layer.query_norm is None or layer.key_norm is None:
        return heads
    queries, keys, values = torch.split(heads, shape.parts, dim=1)
    queries = rms_norm(queries, layer.query_norm, shape.epsilon, heads.dtype)
    keys = rms_norm(keys, layer.key_norm, shape.epsilon, heads.dtype)
    return torch.cat([queries, keys, values], dim=1)
