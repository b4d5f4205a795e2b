"""Widened products: exact products rounded once, on bfloat16 values, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from yatt_core.bfloat16.products import NATIVE, WIDENED

HALF_STEP = 2.0**-24
"""Largest relative error of one float32 rounding."""


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def integers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Returns numbers whose products and sums float32 holds exactly."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounded(exact: torch.Tensor) -> torch.Tensor:
    """Rounds once, from numbers that float32 holds exactly."""
    assert torch.equal(exact.float().double(), exact)
    return exact.float().bfloat16()


def check_rounded_once(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Asserts that a product lies between the roundings of what float32 sums may be at least and at most.

    A sum of n products in float32, in any order, is off by at most n half steps of the sum of their sizes
    (n u / (1 - n u) with u = 2^-24). Rounding keeps the order of numbers, so the bounds hold after it as well.
    """
    exact = left.double() @ right.double()
    count = left.shape[-1]
    share = count * HALF_STEP / (1 - count * HALF_STEP)
    error = share * (left.double().abs() @ right.double().abs())
    assert found.dtype == torch.bfloat16
    least, most = ((exact + sign * error).float().bfloat16() for sign in (-1, 1))
    assert bool(((least <= found) & (found <= most)).all())


@pytest.mark.parametrize("shape", [(7, 300, 11), (64, 64, 64), (1, 2000, 3)])
def test_a_product_is_the_exact_one_rounded_once_within_what_float32_sums_permit(shape):
    rows, inner, columns = shape
    left = noise(rows, inner)
    right = noise(inner, columns, seed=1)
    check_rounded_once(WIDENED.matmul(left, right), left, right)


def test_a_product_of_batches_is_one_too():
    left = noise(3, 2, 5, 40)
    right = noise(3, 2, 40, 6, seed=1)
    check_rounded_once(WIDENED.matmul(left, right), left, right)
    check_rounded_once(WIDENED.bmm(left[0], right[0]), left[0], right[0])
    assert NATIVE.bmm is torch.bmm, "which has less to look at than torch.matmul"


def test_where_float32_is_exact_so_is_the_product():
    left = integers(9, 33)
    right = integers(33, 5, seed=1)
    assert torch.equal(WIDENED.matmul(left, right), rounded(left.double() @ right.double()))


@pytest.mark.parametrize("biased", [True, False])
def test_a_linear_product_and_its_gradients_are_exact_products_rounded_once(biased):
    states = integers(9, 33).requires_grad_()
    narrow = integers(5, 33, seed=1)
    weight = WIDENED.operand(narrow).requires_grad_()
    bias = WIDENED.operand(integers(5, seed=2)).requires_grad_() if biased else None
    product = WIDENED.linear(states, weight, bias)
    added = torch.zeros(5) if bias is None else bias.detach()
    expected = states.detach().double() @ narrow.double().t() + added.double()
    assert torch.equal(product, rounded(expected))
    gradient = integers(9, 5, seed=3)
    product.backward(gradient)
    assert torch.equal(states.grad, rounded(gradient.double() @ narrow.double()))
    assert torch.equal(weight.grad.bfloat16(), rounded(gradient.double().t() @ states.detach().double()))
    gradients = [weight.grad] if bias is None else [weight.grad, bias.grad]
    assert all(torch.equal(each, each.bfloat16().float()) for each in gradients), "gradients are bfloat16 values"
    if bias is not None:
        assert torch.equal(bias.grad.bfloat16(), rounded(gradient.double().sum(0)))


def test_a_linear_product_keeps_its_input_in_bfloat16():
    states = noise(9, 33).requires_grad_()
    weight = WIDENED.operand(noise(5, 33)).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        WIDENED.linear(states, weight, None)
    assert [(each.shape, each.dtype) for each in kept] == [
        (states.shape, torch.bfloat16),
        (weight.shape, torch.float32),
    ]


def test_a_linear_product_is_the_same_with_and_without_gradients():
    states = noise(9, 33)
    weight = WIDENED.operand(noise(5, 33, seed=1))
    with torch.no_grad():
        plain = WIDENED.linear(states, weight, None)
    assert torch.equal(plain, WIDENED.linear(states, weight.requires_grad_(), None))


def test_an_operand_that_was_widened_before_gives_the_same_bits():
    left = noise(9, 33)
    right = noise(33, 5, seed=1)
    assert torch.equal(WIDENED.matmul(left, WIDENED.operand(right)), WIDENED.matmul(left, right))
    assert WIDENED.operand(right).dtype == WIDENED.holding(torch.bfloat16) == torch.float32


@pytest.mark.parametrize("masked", [True, False])
def test_attention_is_close_to_that_in_float64(masked):
    queries = noise(2, 4, 20, 16).requires_grad_()
    keys = noise(2, 2, 20, 16, seed=1)
    values = noise(2, 2, 20, 16, seed=2)
    mask = torch.zeros(2, 1, 20, 20).masked_fill_(torch.ones(20, 20).triu(1).bool(), -torch.inf).bfloat16()
    given = {"attn_mask": mask} if masked else {"is_causal": True}
    found = WIDENED.attention(queries, keys, values, enable_gqa=True, **given)
    wide = queries.detach().double().requires_grad_()
    given = {"attn_mask": mask.double()} if masked else {"is_causal": True}
    expected = scaled_dot_product_attention(wide, keys.double(), values.double(), enable_gqa=True, **given)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-5)
    gradient = noise(*found.shape, seed=3)
    found.backward(gradient)
    expected.backward(gradient.double())
    assert queries.grad.dtype == torch.bfloat16
    torch.testing.assert_close(queries.grad.double(), wide.grad, rtol=2**-8, atol=1e-5)


def test_native_products_take_operands_as_they_are():
    left = noise(9, 33)
    assert NATIVE.operand(left) is left
    assert NATIVE.holding(torch.bfloat16) == torch.bfloat16
    assert not NATIVE.widens
