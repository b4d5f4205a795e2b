"""The arithmetic between a dense layer's matrix products, with backward passes that save memory and memory traffic.

Consumes and produces tensors of rows; the residual stream is float32, products may be bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    """Computes x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (arXiv 1910.07467), as this dtype."""
    if not torch.is_grad_enabled():
        return _normed(hidden, weight, epsilon, dtype)[0]
    normed: torch.Tensor = _RmsNorm.apply(hidden, weight, epsilon, dtype)  # type: ignore[no-untyped-call]
    return normed


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Computes silu(gate) * up (arXiv 2002.05202).

    gate_up: [rows, 2 * width], the gate first.

    Returns [rows, width].
    """
    if not torch.is_grad_enabled():
        return _gated(gate_up)
    product: torch.Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return product


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotated: int) -> torch.Tensor:
    """Rotates the first `rotated` heads by their rows' positions (RoPE, arXiv 2104.09864); the others stay unchanged.

    heads: [rows, heads, size].
    cos, sin: [rows, 1, size], as returned by `RotaryTable`.
    """
    if not torch.is_grad_enabled():
        return _turned(heads=heads, cos=cos, sin=sin, rotated=rotated, sign=1.0)
    turned: torch.Tensor = _Rotate.apply(heads, cos, sin, rotated)  # type: ignore[no-untyped-call]
    return turned


LANES = 16
"""Number of floats in a vector of the widest processors."""


def by_lanes(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Applies an elementwise function so that each value goes through vector code, wherever it is in the tensor.

    The last values of a tensor, if they do not fill a whole vector, go through scalar code, which rounds
    differently; they may belong to several rows. Meant for few values per row.
    """
    return function(values.unsqueeze(-1).expand(*values.shape, LANES).contiguous())[..., 0]


def _normed(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the normalised rows, and the factors that scaled them before the weight did, [..., 1] in float32."""
    wide = hidden.float()
    scale = wide.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
    return wide.mul(scale).mul_(weight).to(dtype), scale


def _gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate).mul_(up)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> Any:
        normed, scale = _normed(hidden, weight, epsilon, dtype)
        ctx.save_for_backward(hidden, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        hidden, weight, scale = ctx.saved_tensors
        gradient = gradients[0].float()
        normed = hidden.float().mul(scale)
        product = gradient * normed
        of_weight = product.flatten(0, -2).sum(0)
        along = torch.matmul(product, weight.float()).div_(weight.numel()).unsqueeze(-1)
        of_hidden = torch.mul(gradient, weight).addcmul_(normed, along, value=-1.0).mul_(scale)
        return of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> Any:
        gate, up = gate_up.chunk(2, -1)
        activated = silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        result = torch.empty_like(gate_up)
        of_gate, of_up = result.chunk(2, -1)
        torch.mul(gradients[0], activated, out=of_up)
        torch.ops.aten.silu_backward(gradients[0] * up, gate, grad_input=of_gate)
        return result


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotated: int) -> Any:
        ctx.save_for_backward(cos, sin)
        ctx.rotated = rotated
        return _turned(heads=heads, cos=cos, sin=sin, rotated=rotated, sign=1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return _turned(heads=gradients[0], cos=cos, sin=sin, rotated=ctx.rotated, sign=-1.0), None, None, None


def _turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotated: int, sign: float) -> torch.Tensor:
    """Maps (front, back) to (front cos - back sin, back cos + front sin), or inverts that with sign -1."""
    turning = heads[:, :rotated]
    result = torch.empty_like(heads)
    swapped = turning.roll(heads.shape[-1] // 2, -1)
    torch.mul(turning, cos, out=result[:, :rotated]).addcmul_(swapped, sin, value=sign)
    result[:, rotated:] = heads[:, rotated:]
    return result
