"""Engines whose processor cannot multiply bfloat16: every product is widened, and weights and states stay bfloat16."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.bfloat16.seen_products import SeenProducts
from tests.engines.rollout.cases import prompts_of, request_of
from tests.engines.train.support import make_model_folder, make_spec, random_task, update, weights_of
from tests.engines.train.test_dense_passes import MODELS, groups, make_model, token_loss
from tests.judges.parts import item, verdicts
from tests.judges.test_reward_model import make_folder, part
from tests.spec.trees import ROOT
from yatt_core.bfloat16 import choice
from yatt_core.bfloat16.products import NATIVE, WIDENED, Products
from yatt_core.engines.dense.attention import LONGEST_KEPT, attend_masked
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.train.model.forward import PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.judges.registry import build_judge
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.sections.trainer import AdamWSpec

PROMPTS = [np.minimum(prompt, 23) for prompt in prompts_of([1, 7, 20])]


@pytest.fixture
def widening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes engines believe that this processor cannot multiply bfloat16."""
    monkeypatch.setattr(choice, "way_of_processor", lambda: "widened")


def passes_of(model: Any, dense: bool, dtype: str, products: Products) -> tuple[Any, FlatAdamW]:
    optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model) if dense else ())
    if dense:
        return DensePasses(model, optimizer, 0.7, dtype, products), optimizer
    return PolicyForward(model, 0.7, dtype, products=products), optimizer


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_training_passes_are_widened_and_close_to_float32(name: str, dense: bool) -> None:
    batches = [assemble(groups(), np.array([11, 0, 1, 2, 8])), assemble(groups(), np.array([3, 4, 5, 6, 7, 9, 10]))]
    found = {}
    scores = {}
    for dtype, products in (("float32", NATIVE), ("bfloat16", WIDENED)):
        passes, optimizer = passes_of(make_model(name), dense, dtype, products)
        with SeenProducts() as seen:
            scores[dtype] = passes.score(batches)
            passes.backward(batches, token_loss, "loss")
        if dtype == "bfloat16":
            seen.check_widened()
        found[dtype] = optimizer.gradients.clone()
    gap = float((found["bfloat16"] - found["float32"]).norm() / found["float32"].norm())
    assert 1e-5 < gap < 0.05
    for ours, theirs in zip(scores["bfloat16"], scores["float32"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.2)


def test_the_gradients_of_several_micro_batches_add_up_in_float32() -> None:
    model = make_model("qwen2-tied")
    parts = [assemble(groups(), indices) for indices in (np.array([0, 1, 2]), np.array([3, 4, 5]))]
    passes, optimizer = passes_of(model, dense=True, dtype="bfloat16", products=WIDENED)
    passes.backward(parts, token_loss)
    together = optimizer.gradients.clone()
    optimizer.zero()
    for one in parts:
        passes.backward([one], token_loss)
    torch.testing.assert_close(together, optimizer.gradients, atol=0, rtol=0)
    assert bool((together != together.bfloat16().float()).any()), "sums of two are no bfloat16 values"


@pytest.mark.parametrize("keys", [20, LONGEST_KEPT + 1])
def test_attention_is_widened_at_every_length(keys: int) -> None:
    noise = torch.Generator().manual_seed(0)
    shapes = [(2, 12, 4, 16), (2, keys, 2, 16), (2, keys, 2, 16)]
    leaves = [torch.randn(shape, generator=noise).bfloat16().requires_grad_() for shape in shapes]
    mask = torch.zeros(2, 1, 12, keys, dtype=torch.bfloat16)
    mask[1, :, :, :4] = -torch.inf
    with SeenProducts() as seen:
        attended = attend_masked(*leaves, mask, WIDENED)
        attended.sum().backward()
    seen.check_widened()
    assert {attended.dtype, *(leaf.grad.dtype for leaf in leaves if leaf.grad is not None)} == {torch.bfloat16}
    expected = attend_masked(*(leaf.detach() for leaf in leaves), mask, NATIVE)
    torch.testing.assert_close(attended, expected, atol=2e-2, rtol=2e-2)


def narrow_model(name: str = "llama") -> Any:
    return make_model(name).to(torch.bfloat16).requires_grad_(False)


@pytest.mark.parametrize("runner", [DenseRunner, ModuleRunner])
@pytest.mark.parametrize("name", MODELS)
def test_generation_is_widened_and_close_to_native_products(name: str, runner: Any) -> None:
    request = request_of(PROMPTS, samples=3, max_new_tokens=6)
    found = {}
    for products in (NATIVE, WIDENED):
        model = narrow_model(name)
        with SeenProducts() as seen:
            found[products.way] = decode(runner(model, products=products), request)
        if products is WIDENED:
            seen.check_widened()
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    native = found["native"]
    widened = found["widened"]
    first = np.cumsum(native.lengths) - native.lengths
    own = np.cumsum(widened.lengths) - widened.lengths
    same = native.tokens[first] == widened.tokens[own]
    assert same.mean() > 0.8, "all but those between two tokens that are equally likely but for rounding"
    assert abs(native.log_probs[first] - widened.log_probs[own])[same].max() < 0.05


@pytest.mark.parametrize("runner", [DenseRunner, ModuleRunner])
def test_a_batch_uses_the_weights_of_its_beginning(runner: Any) -> None:
    request = request_of(PROMPTS, samples=2)
    model = narrow_model()
    other = narrow_model()
    for parameter in other.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.5)
    used = runner(model, products=WIDENED)
    before = decode(used, request)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        mine.copy_(its)
    used = used if runner is ModuleRunner else runner(model, products=WIDENED)
    after = decode(used, request)
    expected = decode(runner(other, products=WIDENED), request)
    assert after.log_probs.tolist() == expected.log_probs.tolist()
    assert after.log_probs.tolist() != before.log_probs.tolist()


@pytest.mark.parametrize("runner", [DenseRunner, ModuleRunner])
def test_widened_copies_are_freed_with_the_cache(runner: Any) -> None:
    model = narrow_model()
    sizes = {each.numel() for each in model.parameters() if each.dim() > 1}
    used = runner(model, products=WIDENED)
    decode(used, request_of(PROMPTS, samples=2))

    def copies() -> int:
        held = (thing for thing in gc.get_objects() if type(thing) is torch.Tensor)
        return sum(each.dtype == torch.float32 and each.numel() in sizes for each in held)

    gc.collect()
    during = copies()
    used.release()
    gc.collect()
    assert during - copies() >= 2 * 2 + 1, "at least the head and what is not fused with others in two layers"


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    close_process_group()


@pytest.mark.parametrize(
    "engine",
    [
        {"kind": "torch", "ranks": 1, "dtype": "bfloat16"},
        {"kind": "torch", "ranks": 1, "dtype": "bfloat16", "kernels": "general"},
        {"kind": "fsdp2", "ranks": 1, "dtype": "bfloat16"},
        {"kind": "fsdp2", "ranks": 1, "dtype": "bfloat16", "activation_checkpointing": True},
    ],
)
def test_a_trainer_whose_processor_cannot_multiply_bfloat16_widens(
    engine: dict[str, Any], tmp_path: Any, widening: None, no_group: None
) -> None:
    model = make_model_folder(tmp_path / "model")
    spec = make_spec(exact=False, trainer={"engine": engine}, algorithm={"kl": {"coefficient": 0.05}})
    trainer: Any = build_train_engine(spec, RankContext(tmp_path, tmp_path / "inputs", str(model), 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    before = weights_of(trainer)
    with SeenProducts() as seen:
        receipt = update(trainer, random_task(tmp_path, 1))
    seen.check_widened()
    assert receipt.metrics["grad_norm"] > 0
    after = weights_of(trainer)
    assert any((after[name] != before[name]).any() for name in before)


def test_a_reward_model_whose_processor_cannot_multiply_bfloat16_widens(tmp_path: Any, widening: None) -> None:
    folder = make_folder(tmp_path / "m")
    with SeenProducts() as seen:
        found = verdicts(build_judge(part(folder, dtype="bfloat16"), str(folder)), item(0), item(1, "noom", "moon"))
    seen.check_widened()
    exact = verdicts(build_judge(part(folder), str(folder)), item(0), item(1, "noom", "moon"))
    for number in (0, 1):
        score, expected = (said[number].judgements[0].score for said in (found, exact))
        assert score == pytest.approx(expected, abs=0.05)


def digest() -> str:
    """Returns a digest of a generation and of gradients, both with widened products on one thread."""
    torch.set_num_threads(1)
    passes, optimizer = passes_of(make_model("qwen3"), True, "bfloat16", WIDENED)
    passes.backward([assemble(groups(), np.arange(12))], token_loss)
    made = decode(DenseRunner(narrow_model("qwen3"), WIDENED), request_of(PROMPTS, samples=3, max_new_tokens=6))
    found = hashlib.sha256(optimizer.gradients.numpy().tobytes())
    found.update(made.tokens.tobytes() + made.log_probs.tobytes())
    return found.hexdigest()


def test_another_process_gets_the_same_bits() -> None:
    program = "from tests.engines.test_widened_products import digest; print(digest())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    threads = torch.get_num_threads()
    try:
        assert other.strip() == digest()
    finally:
        torch.set_num_threads(threads)
