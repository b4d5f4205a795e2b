"""The packed forward pass matches the model on each sequence alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from tests.engines.train.support import VOCABULARY
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward, assemble
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.loading import load_causal_lm
from yatt_core.wire.ragged import offsets_of


@dataclass
class Pairs:
    prompt_tokens: Any
    prompt_offsets: Any
    response_tokens: Any
    response_offsets: Any
    loss_mask: Any
    media: Any = ()
    support: Any = None
    held: Any = None


def pairs(prompt_lengths: list[int], response_lengths: list[int], seed: int = 0) -> Pairs:
    noise = np.random.default_rng(seed)
    return Pairs(
        noise.integers(0, VOCABULARY, sum(prompt_lengths)).astype(np.int32),
        offsets_of(np.array(prompt_lengths)),
        noise.integers(0, VOCABULARY, sum(response_lengths)).astype(np.int32),
        offsets_of(np.array(response_lengths)),
        noise.random(sum(response_lengths)) < 0.8,
    )


def alone(model: Any, data: Pairs, index: int, temperature: float) -> torch.Tensor:
    """Computes the log-distributions that predict each response token of one sequence, [length, vocabulary]."""
    prompt = data.prompt_tokens[data.prompt_offsets[index] : data.prompt_offsets[index + 1]]
    response = data.response_tokens[data.response_offsets[index] : data.response_offsets[index + 1]]
    tokens = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
    logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : len(prompt) - 1 + len(response)]
    return torch.log_softmax(logits / temperature, -1)


def measured(forward: PolicyForward, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probabilities and entropies that a loss is given."""
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def loss(_: MicroBatch, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        parts.append((log_probs.detach(), entropies.detach()))
        return log_probs.sum() + entropies.sum()

    forward.backward([micro_batch], loss, "loss")
    log_probs, entropies = (torch.cat(found) for found in zip(*parts, strict=True))
    return log_probs, entropies


def check_against_alone(model: Any, data: Pairs, indices: list[int], packed: bool = False) -> None:
    micro_batch = assemble(data, np.array(indices), packed)
    log_probs, entropies = measured(PolicyForward(model, 0.7, "float32"), micro_batch)
    with torch.no_grad():
        expected = torch.cat([alone(model, data, index, 0.7) for index in indices])
    responses = np.concatenate(
        [np.arange(data.response_offsets[index], data.response_offsets[index + 1]) for index in indices]
    )
    counted = data.loss_mask[responses]
    np.testing.assert_array_equal(micro_batch.positions, responses[counted])
    targets = torch.tensor(data.response_tokens[responses].astype(np.int64))
    picked = expected.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(log_probs, picked[torch.tensor(counted)], atol=3e-6, rtol=0)
    plain_entropy = -(expected.exp() * expected).sum(1)
    torch.testing.assert_close(entropies, plain_entropy[torch.tensor(counted)], atol=3e-6, rtol=0)


def test_ragged_rows_equal_each_sequence_alone(model_folder: Path) -> None:
    model: Any = load_causal_lm(str(model_folder), "float32")
    data = pairs([1, 9, 4, 4, 2], [7, 1, 3, 5, 1])
    check_against_alone(model, data, [4, 1, 0, 2])
    rows = assemble(data, np.array([3, 0])).rows
    assert set(rows.tolist()) == {3, 0}


def test_packed_samples_equal_each_sequence_alone(model_folder: Path) -> None:
    model: Any = load_causal_lm(str(model_folder), "float32")
    data = pairs([1, 9, 4, 4, 2, 4, 1], [7, 1, 3, 5, 1, 5, 1])
    usual = model.config._attn_implementation
    for indices in ([4, 1, 0, 2, 3, 5, 6], [3, 5, 0], [6]):
        check_against_alone(model, data, indices, packed=True)
    assert model.config._attn_implementation == usual
    micro_batch = assemble(data, np.array([3, 5, 0, 4]), packed=True)
    assert micro_batch.tokens.shape == (1, 8 + 8 + 7 + 2), "nothing is padded"
    assert micro_batch.runs == ((2, 8), (1, 7), (1, 2))


def test_a_model_that_needs_more_than_plain_attention_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Since transformers 5.24 Gemma-2 says that fused attention does not suit it; other models may say so wrongly.
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_logit_softcapping=0.5, attn_implementation="sdpa",
    )  # fmt: skip
    forward = PolicyForward(Gemma2ForCausalLM(config), 1.0, "float32")
    with pytest.raises(ConfigurationError, match=r"^trainer\.engine\.packed: .*\bfalse$"):
        forward.log_probs(assemble(pairs([3, 2], [2, 3]), np.array([0, 1]), packed=True))


def test_the_longest_sample_decides_whether_a_window_is_exceeded() -> None:
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=6,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    short = pairs([2, 2, 2], [3, 3, 3])
    check_against_alone(model, short, [0, 1, 2], packed=True)
    # All samples but one are short.
    data = pairs([2, 2, 2, 7], [3, 3, 3, 5])
    with pytest.raises(ConfigurationError, match=r"^trainer\.engine\.packed: .*\bfalse$"):
        PolicyForward(model, 1.0, "float32").log_probs(assemble(data, np.arange(4), packed=True))


def test_a_model_that_caps_its_logits_keeps_its_own_head() -> None:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.5, initializer_range=0.5,
        attn_implementation="sdpa",
    )  # fmt: skip
    check_against_alone(Gemma3ForCausalLM(config).eval(), pairs([3, 5], [4, 2]), [0, 1])


def test_the_model_is_unchanged_for_other_users(model_folder: Path) -> None:
    model: Any = load_causal_lm(str(model_folder), "float32")
    data = pairs([3, 4], [2, 3])
    PolicyForward(model, 1.0, "float32").log_probs(assemble(data, np.array([0, 1])))
    assert model(input_ids=torch.zeros(2, 5, dtype=torch.long)).logits.shape == (2, 5, VOCABULARY)


def test_a_sample_without_a_prompt_is_refused() -> None:
    with pytest.raises(DataError, match="sample 1 of the batch has no prompt"):
        assemble(pairs([3, 0], [2, 3]), np.array([0, 1]))
