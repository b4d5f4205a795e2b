"""Linear layers that multiply several times by the same matrix, such as the head of a model, chunk by chunk.

Consumes layers whose parameters keep their values meanwhile; leaves them as they were. Without this each call would widen
the matrix anew, forward and backward, which for the few rows of a chunk takes longer than the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from yatt_core.bfloat16.products import Products, held_linear


@contextmanager
def held_layers(products: Products, modules: Iterable[nn.Module]) -> Iterator[None]:
    """Has linear layers among modules multiply by copies that are widened once, now; does nothing for native products.

    modules: compute in bfloat16, by their own type or by autocast. Their parameters' gradients are the same.
    """
    found = [each for module in modules for each in module.modules() if type(each) is nn.Linear]
    layers = list(dict.fromkeys(found)) if products.widens else []
    for layer in layers:
        weight = layer.weight.detach().bfloat16().float()
        bias = None if layer.bias is None else layer.bias.detach().bfloat16().float()
        layer.forward = partial(_multiply, layer, weight, bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _multiply(layer: nn.Linear, weight: torch.Tensor, bias: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """Does what a linear layer does, by copies of its matrix and bias.

    Autocast is off meanwhile: it would make the copies bfloat16 again.
    """
    with torch.autocast(states.device.type, enabled=False):
        rows = held_linear(
            states=states.bfloat16().flatten(0, -2),
            weight=layer.weight,
            bias=layer.bias,
            wide_weight=weight,
            wide_bias=bias,
        )
    return rows.view(*states.shape[:-1], len(weight))
