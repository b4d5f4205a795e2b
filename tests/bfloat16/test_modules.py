"""Modules whose products are widened: all products of a model's passes, and nothing of the model itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import conv2d, grouped_mm, linear, scaled_dot_product_attention

from tests.bfloat16.seen_products import SeenProducts
from tests.bfloat16.test_products import check_rounded_once, integers, noise, rounded
from tests.engines.train.test_dense_passes import make_model
from yatt_core.bfloat16.modules import WidenedModules, matrices_of
from yatt_core.bfloat16.products import NATIVE, WIDENED

STATES, WEIGHT, BIAS = integers(6, 33), integers(5, 33, seed=1), integers(5, seed=2)
CALLS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "linear": lambda kind: linear(STATES.to(kind), WEIGHT.to(kind), BIAS.to(kind)),
    "linear without bias": lambda kind: linear(STATES.to(kind), WEIGHT.to(kind)),
    "matmul": lambda kind: STATES.to(kind) @ WEIGHT.to(kind).t(),
    "batches": lambda kind: torch.bmm(STATES.to(kind).view(2, 3, 33), STATES.to(kind).view(2, 33, 3)),
    "batches added": lambda kind: torch.baddbmm(
        STATES.to(kind)[:2, None, :3], STATES.to(kind).view(2, 3, 33), STATES.to(kind).view(2, 33, 3)
    ),
    "vector": lambda kind: torch.mv(WEIGHT.to(kind), STATES.to(kind)[0]),
    "einsum": lambda kind: torch.einsum("ik,jk->ij", STATES.to(kind), WEIGHT.to(kind)),
    "convolution": lambda kind: conv2d(integers(1, 3, 8, 8).to(kind), integers(4, 3, 4, 4, seed=1).to(kind), stride=4),
    "vectors": lambda kind: torch.vdot(STATES.to(kind)[0], WEIGHT.to(kind)[0]),
    "chain": lambda kind: torch.linalg.multi_dot([STATES.to(kind)[:, :8], WEIGHT.to(kind)[:, :8].t()]),
    "into": lambda kind: torch.mm(STATES.to(kind), WEIGHT.to(kind).t(), out=torch.empty(6, 5, dtype=kind)),
    "into an empty one": lambda kind: torch.mm(STATES.to(kind), WEIGHT.to(kind).t(), out=torch.empty(0, dtype=kind)),
    "into, added": lambda kind: torch.addmm(
        BIAS.to(kind), STATES.to(kind), WEIGHT.to(kind).t(), out=torch.empty(6, 5, dtype=kind)
    ),
    "in place": lambda kind: integers(6, 5, seed=3).to(kind).addmm_(STATES.to(kind), WEIGHT.to(kind).t(), beta=2),
    "vector in place": lambda kind: integers(5, seed=3).to(kind).addmv_(WEIGHT.to(kind), STATES.to(kind)[0]),
    "batches in place": lambda kind: (
        integers(2, 3, 3).to(kind).baddbmm_(STATES.to(kind).view(2, 3, 33), STATES.to(kind).view(2, 33, 3))
    ),
    "sum of batches in place": lambda kind: (
        integers(3, 3).to(kind).addbmm_(STATES.to(kind).view(2, 3, 33), STATES.to(kind).view(2, 33, 3))
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_every_product_is_the_exact_one_rounded_once(name, context):
    with context(), SeenProducts() as products, WidenedModules():
        found = CALLS[name](torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, rounded(CALLS[name](torch.float64)))
    products.check_widened()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_attention_and_groups_of_rows_are_widened(context):
    queries = noise(2, 4, 20, 16)
    with context(), SeenProducts() as products, WidenedModules():
        attended = scaled_dot_product_attention(queries, queries, queries, is_causal=True)
        experts = grouped_mm(STATES[:, :32], integers(2, 32, 16), offs=torch.tensor([2, 6], dtype=torch.int32))
    wide = queries.double()
    expected = scaled_dot_product_attention(wide, wide, wide, is_causal=True)
    torch.testing.assert_close(attended.double(), expected, rtol=2**-8, atol=1e-5)
    assert torch.equal(experts[:2], rounded(STATES[:2, :32].double() @ integers(2, 32, 16)[0].double()))
    products.check_widened()


def test_a_product_in_place_is_its_own_tensor_and_part_of_the_graph():
    start = integers(6, 5, seed=3).requires_grad_()
    states = STATES.clone().requires_grad_()
    with SeenProducts() as products, WidenedModules():
        added = start * 1.0
        assert added.addmm_(states, WEIGHT.t()) is added
        added.backward(integers(6, 5, seed=4))
    products.check_widened()
    assert torch.equal(start.grad, integers(6, 5, seed=4))
    assert torch.equal(states.grad, rounded(integers(6, 5, seed=4).double() @ WEIGHT.double()))


def test_results_may_be_written_into_several_tensors():
    picture, kernel = integers(1, 3, 8, 8), integers(4, 3, 4, 4, seed=1)
    gradient = integers(1, 4, 5, 5, seed=2)
    settings = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])
    found = [torch.empty(0, dtype=torch.bfloat16) for _ in range(3)]
    with WidenedModules():
        expected = torch.ops.aten.convolution_backward(gradient, picture, kernel, *settings)
        torch.ops.aten.convolution_backward.out(
            gradient, picture, kernel, *settings, out0=found[0], out1=found[1], out2=found[2]
        )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_torchs_own_module_of_attention_is_widened(context):
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).bfloat16().eval()
    states = noise(2, 5, 16)
    with context(), SeenProducts() as products, WidenedModules():
        found = layer(states, states, states)[0]
    products.check_widened()
    expected = layer.double()(states.double(), states.double(), states.double())[0]
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=1e-3)


def test_products_of_float32_are_left_alone():
    left, right = (torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    with WidenedModules():
        assert torch.equal(left @ right, torch.matmul(left, right))
    with WIDENED.in_modules():
        found = left @ right
    assert torch.equal(found, left @ right)


def test_native_products_change_nothing_in_modules():
    with SeenProducts() as products, NATIVE.in_modules():
        linear(STATES, WEIGHT)
    assert {kind for each in products.seen for kind in each.types} == {torch.bfloat16}


def test_matrices_widened_before_give_the_same_bits_for_as_long_as_they_are_used():
    layer = torch.nn.Linear(33, 5).bfloat16().requires_grad_(False)
    multiplying = WIDENED.in_modules(matrices_of(layer))
    with WIDENED.in_modules():
        expected = layer(STATES)
    for _ in range(2):
        with multiplying:
            assert torch.equal(layer(STATES), expected)
    with torch.no_grad():
        layer.weight.add_(1.0)
    with multiplying:
        assert torch.equal(layer(STATES), expected), "the copies keep the values of their making"


@pytest.mark.parametrize("name", ["llama-biased", "qwen3"])
def test_a_models_passes_are_widened_and_nothing_of_it_becomes_float32(name):
    kinds = {}
    for way in (NATIVE, WIDENED):
        model = make_model(name).bfloat16()
        outputs: list[torch.dtype] = []
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _, __, made, into=outputs: into.append(_dtype(made)))
        with SeenProducts() as products, way.in_modules():
            logits = model(input_ids=torch.arange(12).view(2, 6)).logits
            logits.float().square().mean().backward()
        kinds[way.way] = outputs
        assert logits.dtype == torch.bfloat16
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.bfloat16}
        if way is WIDENED:
            products.check_widened()
            assert any("backward" in each.name for each in products.seen)
    assert kinds["widened"] == kinds["native"]


def _dtype(made):
    return made[0].dtype if isinstance(made, tuple) else made.dtype


def test_autocast_products_and_their_gradients_are_widened():
    states = noise(6, 33).float().requires_grad_()
    layer = torch.nn.Linear(33, 5, bias=False)
    with SeenProducts() as products, WIDENED.in_modules(), torch.autocast("cpu", torch.bfloat16):
        product = layer(states)
        product.backward(noise(6, 5, seed=1))
    products.check_widened()
    check_rounded_once(product, states.detach().bfloat16(), layer.weight.detach().bfloat16().t())
    check_rounded_once(states.grad.bfloat16(), noise(6, 5, seed=1), layer.weight.detach().bfloat16())
    assert layer.weight.grad.dtype == layer.weight.dtype == torch.float32
    assert torch.equal(layer.weight.grad, layer.weight.grad.bfloat16().float())
