"""Matrix products of bfloat16 tensors: torch's own, or widened to float32, multiplied there, and rounded once.

Consumes tensors of bfloat16, and copies of such tensors in float32, which are made once and used often. Produces
tensors of bfloat16. A widened product's operands are bfloat16 values, all sums are float32, and so is what fused
attention holds between its two products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, scaled_dot_product_attention

from yatt_core.bfloat16.modules import WidenedModules
from yatt_core.bfloat16.way import Way

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Products:
    """One way of multiplying.

    matmul: does what `torch.matmul` does; an operand may be a copy in float32.
    bmm: does what `torch.bmm` does, of which torch's own is faster than `matmul` for small matrices; as above.
    linear: does what `torch.nn.functional.linear` does, for a matrix and a bias as `operand` returns them.
    attention: does what `torch.nn.functional.scaled_dot_product_attention` does.
    """

    way: Way
    matmul: Callable[[Tensor, Tensor], Tensor]
    bmm: Callable[[Tensor, Tensor], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    attention: Callable[..., Tensor]

    @property
    def widens(self) -> bool:
        """Whether operands are widened."""
        return self.way == "widened"

    def operand(self, tensor: Tensor) -> Tensor:
        """Returns a tensor as it is multiplied: itself or, if operands are widened, a copy in float32 to use often."""
        return tensor.float() if self.widens else tensor

    def holding(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type in which operands are held that are multiplied many times."""
        return torch.float32 if self.widens else dtype

    def in_modules(self, matrices: Iterable[Tensor] = ()) -> AbstractContextManager[Any]:
        """Returns a context in which modules of torch multiply this way too, forward and backward; it can be entered again.

        matrices: of bfloat16; they are widened once, now, and must keep their values as long as the context is used.
        """
        return WidenedModules(matrices) if self.widens else nullcontext()


def widened_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Computes `torch.matmul` in float32; returns bfloat16."""
    return torch.matmul(left.float(), right.float()).bfloat16()


def widened_bmm(left: Tensor, right: Tensor) -> Tensor:
    """Computes `torch.bmm` in float32; returns bfloat16."""
    return torch.bmm(left.float(), right.float()).bfloat16()


def widened_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `torch.nn.functional.linear` in float32.

    states: [rows, inputs] in bfloat16.
    weight, bias: bfloat16 values in float32, [outputs, inputs] and [outputs]. So are their gradients.

    Returns [rows, outputs] in bfloat16.
    """
    return held_linear(
        states=states,
        weight=weight,
        bias=bias,
        wide_weight=weight.detach(),
        wide_bias=None if bias is None else bias.detach(),
    )


def held_linear(
    states: Tensor, weight: Tensor, bias: Tensor | None, wide_weight: Tensor, wide_bias: Tensor | None
) -> Tensor:
    """Computes `torch.nn.functional.linear` in float32, by copies of matrix and bias that were widened before.

    states: [rows, inputs] in bfloat16.
    weight, bias: [outputs, inputs] and [outputs]; only their gradients matter, bfloat16 values in their own type.
    wide_weight, wide_bias: the copies, bfloat16 values in float32.

    Returns [rows, outputs] in bfloat16.
    """
    if not torch.is_grad_enabled():
        return linear(states.float(), wide_weight, wide_bias).bfloat16()
    product: Tensor = _WidenedLinear.apply(  # type: ignore[no-untyped-call]
        states, weight, bias, wide_weight, wide_bias
    )
    return product


def widened_attention(queries: Tensor, keys: Tensor, values: Tensor, **others: Any) -> Tensor:
    """Computes scaled dot product attention in float32; returns bfloat16.

    others: as `torch.nn.functional.scaled_dot_product_attention` takes them.
    """
    mask = others.pop("attn_mask", None)
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    return scaled_dot_product_attention(
        queries.float(), keys.float(), values.float(), attn_mask=mask, **others
    ).bfloat16()


class _WidenedLinear(torch.autograd.Function):
    """Keeps its input in bfloat16, as the product itself would."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wide_weight: Tensor, wide_bias: Tensor | None
    ) -> Any:
        ctx.save_for_backward(states, wide_weight)
        ctx.types = weight.dtype, None if bias is None else bias.dtype
        return linear(states.float(), wide_weight, wide_bias).bfloat16()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        states, weight = ctx.saved_tensors
        wide = gradients[0].float()
        of_matrix, of_addend = ctx.types
        needs_states, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        of_states = torch.mm(wide, weight).bfloat16() if needs_states else None
        of_weight = torch.mm(wide.t(), states.float()).bfloat16().to(of_matrix) if needs_weight else None
        of_bias = wide.sum(0).bfloat16().to(of_addend) if needs_bias else None
        return of_states, of_weight, of_bias, None, None


NATIVE = Products(
    way="native",
    matmul=torch.matmul,
    bmm=torch.bmm,
    linear=linear,
    attention=scaled_dot_product_attention,
)
"""Torch's own products, for every type."""
WIDENED = Products(
    way="widened",
    matmul=widened_matmul,
    bmm=widened_bmm,
    linear=widened_linear,
    attention=widened_attention,
)
"""Products of bfloat16 through float32."""
