"""Matrices in the layout that a CPU multiplies fastest: decoding multiplies few rows with each of them very often.

Consumes `DenseWeights`; produces `DenseWeights` whose matrices are copies in oneDNN's layout, and the product
that takes them. Torch otherwise offers this layout only to its own compiler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from yatt_core.engines.dense.weights import DenseWeights

_ONEDNN: Any = torch.ops.mkldnn


def packable(weight: torch.Tensor) -> bool:
    """Returns True if the layout is supported: only for bfloat16, on CPUs that can multiply it.

    Never for float32, whose rows must keep their bits.
    """
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(_ONEDNN._is_mkldnn_bf16_supported())
    )


def packed(weights: DenseWeights, rows: int) -> DenseWeights:
    """Returns the weights with packed copies of the matrices, suited to products of about `rows` rows."""

    def pack(weight: torch.Tensor) -> torch.Tensor:
        copy: torch.Tensor = _ONEDNN._reorder_linear_weight(weight.detach(), rows)
        return copy

    layers = tuple(
        replace(layer, qkv=pack(layer.qkv), out=pack(layer.out), gate_up=pack(layer.gate_up), down=pack(layer.down))
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=pack(weights.head))


def packed_linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Computes `torch.nn.functional.linear` with a packed weight.

    states: [rows, inputs].

    Returns [rows, outputs].
    """
    product: torch.Tensor = _ONEDNN._linear_pointwise(states, weight, bias, "none", [], "")
    return product
