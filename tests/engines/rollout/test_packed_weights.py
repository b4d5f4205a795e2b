"""Packed matrices multiply like plain ones, keep the weights as they were when the batch began, and are freed with the cache."""

import gc

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import prompts_of, request_of
from tests.engines.train.test_dense_passes import MODELS, make_model
from yatt_core.bfloat16.way import way_of_processor
from yatt_core.engines.rollout.torch import dense_runner
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.packed_weights import packable, packed_linear
from yatt_core.engines.rollout.torch.runners import open_runner

PROMPTS = [np.minimum(prompt, 23) for prompt in prompts_of([1, 7, 20])]
PACKED = way_of_processor() == "native" and packable(torch.zeros(1, dtype=torch.bfloat16))
"""Whether engines pack here: where oneDNN multiplies bfloat16 without its instructions, they widen instead."""


def narrow_model(name="llama"):
    return make_model(name).to(torch.bfloat16)


def test_only_bfloat16_is_packed():
    assert not packable(torch.zeros(1))
    assert not packable(torch.zeros(1, dtype=torch.bfloat16, device="meta"))


def packed_tensors() -> int:
    """Returns the number of packed weights in this process."""
    return sum(type(thing) is torch.Tensor and thing.is_mkldnn for thing in gc.get_objects())


@pytest.mark.skipif(not PACKED, reason="engines do not pack on this processor")
class TestPacked:
    @pytest.mark.parametrize("name", MODELS)
    def test_log_probs_match_plain_products(self, name, monkeypatch):
        request = request_of(PROMPTS, samples=3, max_new_tokens=1)
        fast = decode(DenseRunner(narrow_model(name)), request)
        monkeypatch.setattr(dense_runner, "packable", lambda weight: False)
        plain = decode(DenseRunner(narrow_model(name)), request)
        assert fast.tokens.tolist() == plain.tokens.tolist()
        assert abs(fast.log_probs - plain.log_probs).max() < 0.05

    def test_a_batch_uses_the_weights_of_its_beginning(self):
        request = request_of(PROMPTS, samples=2)
        model = narrow_model()
        other = narrow_model()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.5)
        runner = open_runner(model, fused=True)
        before = decode(runner, request)
        with torch.no_grad():
            for mine, its in zip(model.parameters(), other.parameters(), strict=True):
                mine.copy_(its)
        after = decode(runner, request)
        expected = decode(open_runner(other, fused=True), request)
        assert after.log_probs.tolist() == expected.log_probs.tolist()
        assert after.log_probs.tolist() != before.log_probs.tolist()

    def test_copies_are_freed_with_the_cache(self):
        gc.collect()  # other tests of this process may have left copies in circles
        before = packed_tensors()
        runner = DenseRunner(narrow_model())
        decode(runner, request_of(PROMPTS, samples=2))
        packed = packed_tensors()
        runner.release()
        assert packed > before
        assert packed_tensors() == before

    def test_a_product_matches_the_plain_weight(self):
        noise = torch.Generator().manual_seed(0)
        weight, states, bias = (torch.randn(shape, generator=noise).bfloat16() for shape in ((48, 32), (7, 32), (48,)))
        copy = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        for added in (None, bias):
            expected = torch.nn.functional.linear(
                states.double(), weight.double(), None if added is None else added.double()
            )
            torch.testing.assert_close(packed_linear(states, copy, added).double(), expected, atol=0.1, rtol=1e-2)
