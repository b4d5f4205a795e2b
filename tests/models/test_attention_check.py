"""A model whose attention torch's fused kernels do not cover is refused when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel
from transformers.models.mistral import modeling_mistral

from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import load_causal_lm, load_classifier

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Gemma-2 say that fused attention suits it, as it did before transformers 5.24; other models may say so wrongly."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)


def gemma(folder: Path, cap: float | None) -> Path:
    """Writes a Gemma-2 model whose attention logits are large enough for the cap to matter, as trained ones are."""
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(**SIZES, attn_logit_softcapping=cap, query_pre_attn_scalar=1, initializer_range=0.5)
    )
    model.save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("claimed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_soft_capped_attention_is_refused_instead_of_dropped(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.*gemma2.*attn_logit_softcapping: 2"):
        load_causal_lm(str(gemma(tmp_path, 2.0)), dtype)


@pytest.mark.usefixtures("claimed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_model_without_the_cap_loads(tmp_path: Path, dtype: str) -> None:
    model: Any = load_causal_lm(str(gemma(tmp_path, None)), dtype)
    assert model.config._attn_implementation == "sdpa", "the check leaves the attention as it was"


@pytest.mark.usefixtures("claimed")
def test_a_reward_model_is_checked_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        **SIZES,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=1,
        initializer_range=0.5,
        num_labels=1,
        pad_token_id=0,
    )
    Gemma2ForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=r"gemma2.*attn_logit_softcapping: 2"):
        load_classifier(str(tmp_path), "float32")


def test_a_model_that_says_that_fused_attention_does_not_suit_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.*gemma2.*scaled_dot_product_attention"):
        load_causal_lm(str(gemma(tmp_path, 2.0)), "float32")


def test_fused_attention_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = modeling_mistral.eager_attention_forward

    def sharper(module: Any, query: torch.Tensor, *rest: Any, **more: Any) -> Any:
        return reference(module, 50 * query, *rest, **more)

    torch.manual_seed(0)
    MistralForCausalLM(MistralConfig(**SIZES, initializer_range=0.5)).save_pretrained(tmp_path)
    monkeypatch.setattr(modeling_mistral, "eager_attention_forward", sharper)
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.*outputs of mistral are off by"):
        load_causal_lm(str(tmp_path), "float32")


def test_another_unknown_model_loads(tmp_path: Path) -> None:
    MistralForCausalLM(MistralConfig(**SIZES)).save_pretrained(tmp_path)
    assert load_causal_lm(str(tmp_path), "float32")
