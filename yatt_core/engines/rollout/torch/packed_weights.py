"""Matrices in the form that a CPU multiplies fastest: decoding multiplies few rows with each of them very often.

Consumes `DenseWeights`; produces `DenseWeights` whose matrices are copies, in oneDNN's layout or, for products that are
widened, in float32, and the product that takes packed ones. Torch otherwise offers this layout only to its own compiler.
"""

from __future__ import annotations

from collections.abc import Callable
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

    return _with_copies(weights, pack, lambda bias: bias)


def widened(weights: DenseWeights) -> DenseWeights:
    """Returns the weights with copies of matrices and biases in float32, as `widened_linear` takes them."""

    def widen(weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().float()

    return _with_copies(weights, widen, lambda bias: None if bias is None else widen(bias))


def _with_copies(
    weights: DenseWeights,
    matrix: Callable[[torch.Tensor], torch.Tensor],
    bias: Callable[[torch.Tensor | None], torch.Tensor | None],
) -> DenseWeights:
    """Returns the weights with what two functions make of matrices and of biases."""
    layers = tuple(
        replace(
            layer,
            qkv=matrix(layer.qkv),
            qkv_bias=bias(layer.qkv_bias),
            out=matrix(layer.out),
            out_bias=bias(layer.out_bias),
            gate_up=matrix(layer.gate_up),
            gate_up_bias=bias(layer.gate_up_bias),
            down=matrix(layer.down),
            down_bias=bias(layer.down_bias),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=matrix(weights.head))


def packed_linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Computes `torch.nn.functional.linear` with a packed weight.

    states: [rows, inputs].

    Returns [rows, outputs].
    """
    product: torch.Tensor = _ONEDNN._linear_pointwise(states, weight, bias, "none", [], "")
    return product
