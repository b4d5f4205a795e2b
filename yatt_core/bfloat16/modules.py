"""Makes modules of torch multiply bfloat16 through float32, without a change of the modules or of their parameters.

Consumes the operations of a model's forward and backward passes, after autocast and autograd have turned them into
those that a CPU carries out. Products are carried out on widened operands and rounded once; everything else is left
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN: Any = torch.ops.aten

PRODUCTS = frozenset(
    {
        _ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.addbmm, _ATEN.mv, _ATEN.addmv, _ATEN.dot, _ATEN.vdot,
        _ATEN.addmm_, _ATEN.baddbmm_, _ATEN.addbmm_, _ATEN.addmv_, _ATEN._addmm_activation,
        _ATEN._grouped_mm, _ATEN._trilinear, _ATEN.convolution, _ATEN.convolution_backward,
        _ATEN._scaled_dot_product_flash_attention_for_cpu, _ATEN._scaled_dot_product_flash_attention_for_cpu_backward,
        _ATEN._native_multi_head_attention, _ATEN._transformer_encoder_layer_fwd,
        # Inference mode does not take these apart.
        _ATEN.linear, _ATEN.matmul, _ATEN.einsum, _ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d,
        _ATEN.inner, _ATEN.tensordot, _ATEN.linalg_matmul, _ATEN.linalg_multi_dot, _ATEN.chain_matmul, _ATEN.linalg_vecdot,
        _ATEN.bilinear,
        _ATEN.conv_transpose1d, _ATEN.conv_transpose2d, _ATEN.conv_transpose3d, _ATEN.scaled_dot_product_attention,
    }
)  # fmt: skip
"""Operations that multiply matrices."""
_SUMS_STAY = _ATEN._scaled_dot_product_flash_attention_for_cpu
"""Its second result, the logarithms of sums of exponentials, is float32 for every type of its operands."""


class WidenedModules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that widens the products of its thread.

    matrices: of bfloat16; they are widened once, now, and must keep their values as long as the context is used.
    """

    def __init__(self, matrices: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        whole = {matrix.data_ptr(): matrix.detach() for matrix in matrices if matrix.is_contiguous()}
        self._copies = {place: matrix.float() for place, matrix in whole.items()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False: torch would wrap each call to keep its compiler out, which takes longer than most operations of a
        decoding step; nothing is compiled here.
        """
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func.overloadpacket not in PRODUCTS or not _has_narrow((*args, *given.values())):
            return func(*args, **given)
        wide_args = _mapped(self._wide, args)
        wide_given = {name: _mapped(self._wide, value) for name, value in given.items()}
        written = _written(func)
        for name in written:
            if name in given:  # what it holds until now is overwritten
                wide_given[name] = torch.empty_like(given[name], dtype=torch.float32)
        made = func(*wide_args, **wide_given)
        if not written:
            if func.overloadpacket is _SUMS_STAY:
                return made[0].bfloat16(), made[1]
            return _mapped(torch.Tensor.bfloat16, made)
        targets = [given[name] if name in given else args[0] for name in written]
        results = made if isinstance(made, tuple) else (made,)
        for target, result in zip(targets, results, strict=True):
            if target.shape != result.shape:
                target.resize_(result.shape)  # as the product itself does
            target.copy_(result)
        return tuple(targets) if isinstance(made, tuple) else targets[0]

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor in float32: a view of a copy that was made before, or a new one."""
        if tensor.dtype != torch.bfloat16:
            return tensor
        copy = self._copies.get(tensor.data_ptr())
        if copy is not None and copy.numel() == tensor.numel():
            return copy.as_strided(tensor.shape, tensor.stride())
        return tensor.float()


@cache
def _written(func: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a product writes its results to: `out`, or its first one; none by default."""
    written = [each for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    return tuple(each.name for each in written)


def _has_narrow(values: Iterable[Any]) -> bool:
    """Returns True if a tensor among values, or in lists among them, is of bfloat16 and on a CPU."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dtype == torch.bfloat16 and value.device.type == "cpu":
                return True
        elif isinstance(value, list | tuple) and _has_narrow(value):
            return True
    return False


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Returns a value, or lists of values, with each tensor changed.

    An operation's arguments are no deeper than lists, for which torch's own trees take longer than a small product.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, each) for each in value])
    return value


def matrices_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the matrices that a module's linear layers multiply with."""
    return [each.weight for each in module.modules() if isinstance(each, torch.nn.Linear)]
