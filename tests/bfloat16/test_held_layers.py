"""Layers whose matrices are widened once for several calls: the results of widened modules, without another copy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.bfloat16.seen_products import SeenProducts
from tests.bfloat16.test_products import integers
from yatt_core.bfloat16.held_layers import held_layers
from yatt_core.bfloat16.products import NATIVE, WIDENED


def layer_of(autocast: bool, biased: bool) -> nn.Linear:
    """Returns a layer in bfloat16, or one in float32 for autocast, both with the same values."""
    layer = nn.Linear(33, 5, bias=biased)
    with torch.no_grad():
        layer.weight.copy_(integers(5, 33, seed=1))
        if biased:
            layer.bias.copy_(integers(5, seed=2))
    return layer if autocast else layer.bfloat16()


def passes(layer: nn.Linear, autocast: bool, held: bool) -> list[torch.Tensor]:
    """Returns the outputs of two calls and the gradients."""
    states = integers(2, 6, 33).requires_grad_()
    gradient = integers(2, 6, 5, seed=3)
    layer.zero_grad()
    made = []
    with WIDENED.in_modules():
        with held_layers(WIDENED, [layer]) if held else nullcontext():
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    made.append(layer(states))
        for each in made:
            each.backward(gradient)
    found: list[Any] = [*made, states.grad, *(parameter.grad for parameter in layer.parameters())]
    return found


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_held_layer_has_the_results_and_gradients_of_a_widened_one(autocast: bool, biased: bool) -> None:
    expected = passes(layer_of(autocast, biased), autocast, held=False)
    with SeenProducts() as products:
        found = passes(layer_of(autocast, biased), autocast, held=True)
    products.check_widened()
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_no_rows_have_no_products() -> None:
    layer = layer_of(autocast=False, biased=True)
    with held_layers(WIDENED, [layer]):
        assert layer(integers(1, 0, 33)).shape == (1, 0, 5)


def test_a_frozen_layer_has_no_gradient() -> None:
    layer = layer_of(autocast=False, biased=True).requires_grad_(False)
    assert passes(layer, autocast=False, held=True)[-2:] == [None, None]


def test_layers_are_as_before_once_they_are_not_held() -> None:
    layer = layer_of(autocast=False, biased=True)
    with pytest.raises(OSError, match="full"), held_layers(WIDENED, [layer, nn.ModuleList([layer])]):
        assert "forward" in vars(layer)
        raise OSError("full")
    assert "forward" not in vars(layer)
    with held_layers(NATIVE, [layer]):
        assert "forward" not in vars(layer)
