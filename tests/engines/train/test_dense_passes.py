"""The fast path of training matches the gradients of transformers' autograd and is taken only where it applies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from tests.engines.train.support import VOCABULARY, make_engine, make_spec, random_task, update
from tests.engines.train.test_forward import Pairs, pairs
from yatt_core.engines.dense.shape import why_general
from yatt_core.engines.environment import environment_facts
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.torch.dense_head import LEAST_BY_MASS, Head, measure_tokens
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.engines.train.torch.shared_rows import share_rows
from yatt_core.spec.sections.trainer import AdamWSpec
from yatt_core.wire.ragged import offsets_of, ragged_positions

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 36, "intermediate_size": 45, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "initializer_range": 0.2, "attn_implementation": "sdpa",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip


def make_model(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    models: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "llama-biased": lambda: LlamaForCausalLM(
            LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)
        ),
        "qwen2-tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True, pad_token_id=3)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    }
    model = models[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


MODELS = ("llama", "llama-biased", "qwen2-tied", "qwen3")


def groups(samples: int = 3) -> Pairs:
    """Returns ragged responses, `samples` per prompt; of four prompts, two are equally long and one has one token."""
    noise = np.random.default_rng(1)
    prompts = np.repeat(np.arange(4), samples)
    single = pairs([5, 1, 30, 5], [1, 1, 1, 1])
    positions = ragged_positions(single.prompt_offsets, prompts)
    responses = noise.integers(1, 25, len(prompts))
    responses[0] = 1
    return Pairs(
        single.prompt_tokens[positions],
        offsets_of(np.diff(single.prompt_offsets)[prompts]),
        noise.integers(0, VOCABULARY, responses.sum()).astype(np.int32),
        offsets_of(responses),
        noise.random(responses.sum()) < 0.8,
    )


def token_loss(batch: MicroBatch, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """Computes a loss that depends on token positions, non-linearly on log-probabilities, and on entropies if given."""
    weights = torch.from_numpy(np.cos(batch.positions)).float()
    loss = (weights * (log_probs + 0.1 * log_probs.square())).sum()
    return loss + 0.3 * (weights * entropies).sum() if len(entropies) else loss


def gradients(model: Any, batches: list[MicroBatch], fast: bool, entropy: Any, temperature: float) -> torch.Tensor:
    optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
    passes: Any = DensePasses(model, optimizer, 0.7, "float32") if fast else PolicyForward(model, 0.7, "float32")
    passes.backward(batches, token_loss, entropy, temperature)
    return optimizer.gradients


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("entropy", "temperature"), [("none", 1.0), ("loss", 0.7)])
@pytest.mark.parametrize("strip", [3, 2**15])
def test_gradients_match_transformers_within_2e_6(
    name: str, entropy: str, temperature: float, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.STRIP_LOGITS", 1)
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.FEWEST_OF_STRIP", strip)
    data = groups()
    parts = [np.array([11, 0, 1, 2, 8]), np.array([3, 4, 5, 6, 7, 9, 10])]
    ours, theirs = (
        gradients(make_model(name), [assemble(data, part) for part in parts], fast, entropy, temperature)
        for fast in (True, False)
    )
    assert float(theirs.norm()) > 0.1
    assert float((ours - theirs).double().norm() / theirs.double().norm()) < 2e-6


@pytest.mark.parametrize("name", MODELS)
def test_scores_match_transformers(name: str) -> None:
    model = make_model(name)
    batches = [assemble(groups(), np.arange(12)), assemble(groups(), np.array([2]))]
    optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
    expected = PolicyForward(model, 0.7, "float32").score(batches)
    for found, wanted in zip(DensePasses(model, optimizer, 0.7, "float32").score(batches), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=5e-6, rtol=2e-6)


def test_an_all_but_impossible_token_has_its_log_probability() -> None:
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(9, 4, generator=noise)
    states = torch.randn(6, 4, generator=noise) * 200
    targets = torch.tensor([0, 3, 8, 1, 2, 5])
    expected = torch.log_softmax(states.double() @ weight.double().t(), -1).gather(1, targets[:, None])[:, 0]
    assert expected.min() < -200 and expected.max() > LEAST_BY_MASS
    found, _ = measure_tokens(Head(weight, 1.0), states, targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-6)


def test_packed_samples_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.MOST", 7)
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.FEWEST", 7)
    found = [
        gradients(make_model("llama"), [assemble(groups(), np.arange(12), packed)], True, "metric", 1.0)
        for packed in (False, True)
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_a_prompt_is_stored_once_and_nothing_is_padded() -> None:
    data = groups(samples=5)
    rows = share_rows(assemble(data, np.arange(20)), torch.float32)
    inputs = np.diff(data.response_offsets) - 1
    assert len(rows.tokens) == 5 + 1 + 30 + 5 + inputs.sum()
    assert sum(call.mask is None for call in rows.calls) == 2
    assert len(np.unique(rows.outputs)) == len(rows.tokens)


def test_bfloat16_is_close_and_accumulates_in_float32() -> None:
    model = make_model("qwen2-tied")
    found = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
        passes = DensePasses(model, optimizer, 0.7, dtype)
        passes.backward([assemble(groups(), np.arange(12))], token_loss)
        found[dtype] = optimizer.gradients.clone()
    gap = float((found["bfloat16"] - found["float32"]).norm() / found["float32"].norm())
    assert 1e-5 < gap < 0.05
    assert found["bfloat16"].dtype == torch.float32


def test_a_batch_without_counted_tokens_changes_nothing() -> None:
    model = make_model("llama")
    data = groups()
    data.loss_mask[:] = False
    assert not gradients(model, [assemble(data, np.arange(12)), assemble(data, np.arange(0))], True, "none", 1.0).any()


def test_models_of_other_kinds_are_left_to_transformers() -> None:
    assert [why_general(make_model(name)) for name in MODELS] == [""] * 4
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES))
    windowed = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1))
    gelu = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    scaled = LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    )
    reasons = [why_general(model) for model in (gemma, windowed, gelu, scaled)]
    assert "gemma3_text" in reasons[0]
    assert "layers" in reasons[1]
    assert "gelu" in reasons[2]
    assert "dynamic" in reasons[3]


def test_neighbours_are_contiguous_and_keep_their_names(tmp_path: Path) -> None:
    model = make_model("qwen2-tied")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name], atol=0, rtol=0)
    names = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    joined = optimizer.together(optimizer.values.detach(), names)
    torch.testing.assert_close(joined, torch.cat([before[name] for name in names]), atol=0, rtol=0)
    assert sorted(optimizer.named(optimizer.gradients)) == sorted(before)


def test_the_trainer_picks_the_fast_path_by_default_and_reports_it(tmp_path: Path, model_folder: Path) -> None:
    found = {}
    for kernels in ("auto", "general"):
        spec = make_spec(trainer={"engine": {"kind": "torch", "ranks": 1, "kernels": kernels}})
        engine = make_engine(spec, tmp_path / kernels, model_folder)
        found[kernels] = update(engine, random_task(tmp_path / kernels, 1)).metrics
        assert isinstance(engine.policy.forward, DensePasses) == (kernels == "auto")
        said = environment_facts(spec, str(model_folder))["arithmetic"]
        assert said == {"auto": "fast", "general": "general: requested"}[kernels]
    assert found["auto"] == pytest.approx(found["general"], rel=1e-4, abs=1e-6)
    assert found["auto"]["grad_norm"] != found["general"]["grad_norm"]


def test_a_folder_of_another_kind_is_named_with_the_reason(tmp_path: Path) -> None:
    Gemma3TextConfig(**SIZES).save_pretrained(tmp_path)
    said = environment_facts(make_spec(), str(tmp_path))["arithmetic"]
    assert said.startswith("general: gemma3_text ") and said.endswith(" llama, qwen2, qwen3")
