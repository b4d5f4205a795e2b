"""The head works in chunks of tokens: the same updates, and no tensor of tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

from tests.engines.train.largest import Largest
from tests.engines.train.support import make_spec, random_task, update, weights_of
from tests.engines.train.test_dense_passes import SIZES, groups, make_model, token_loss
from tests.needs import NEEDS_MEGATRON
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.model import chunk_sizes
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.sections.trainer import AdamWSpec

VOCABULARY = 2048
ROWS = 8
ENGINES: list[Any] = [
    pytest.param({"kind": "torch", "ranks": 1, "kernels": "general"}, id="torch"),
    pytest.param({"kind": "fsdp2", "ranks": 1, "dtype": "float32"}, id="fsdp2"),
    pytest.param(
        {"kind": "megatron", "dtype": "float32", "data_parallel_size": 1}, id="megatron", marks=NEEDS_MEGATRON
    ),
]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_sizes, "CHUNK_LOGITS", 1)
    monkeypatch.setattr(chunk_sizes, "FEWEST", ROWS)


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    close_process_group()


WHOLE = {
    "loss": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1},
    "importance_correction": {"kind": "truncate", "by": "sequence_mean", "cap": 2.0},
}


def learn(
    engine_spec: dict[str, Any], folder: Path, model: Path, algorithm: dict[str, Any]
) -> tuple[dict[str, np.ndarray], int]:
    """Returns the weights after an update with a KL term and an entropy bonus, and the elements of its largest tensor."""
    common = {"kl": {"coefficient": 0.05}, "entropy": {"kind": "bonus", "coefficient": 0.01}, "epochs": 2}
    spec = make_spec(trainer={"engine": engine_spec}, algorithm=common | algorithm)
    engine: Any = build_train_engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    with Largest() as largest:
        update(engine, random_task(folder, 1, vocabulary=VOCABULARY))
    return weights_of(engine), largest.elements


@pytest.mark.parametrize("algorithm", [{}, WHOLE], ids=["tokens", "whole-responses"])
@pytest.mark.parametrize("engine_spec", ENGINES)
def test_an_update_is_the_same_without_a_tensor_of_tokens_by_vocabulary(
    engine_spec: dict[str, Any],
    algorithm: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    no_group: None,
) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=1, tie_word_embeddings=True, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    whole, most = learn(engine_spec, tmp_path / "whole", tmp_path / "model", algorithm)
    request.getfixturevalue("small_chunks")
    chunked, fewest = learn(engine_spec, tmp_path / "chunked", tmp_path / "model", algorithm)
    for name, array in whole.items():
        np.testing.assert_allclose(chunked[name], array, atol=1e-6, rtol=0, err_msg=name)
    assert most >= 60 * VOCABULARY, "a single chunk has the logits of all tokens of a micro-batch"
    assert fewest <= config.vocab_size * config.hidden_size + 10_000, "what remains are parameters"


def coupled_loss(micro_batch: MicroBatch, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """Couples all tokens of a micro-batch."""
    places = torch.linspace(0.5, 1.0, len(log_probs))
    return (places * log_probs).sum().sin() + (entropies.sum() if len(entropies) else 0.0) * log_probs.mean().exp()


@pytest.mark.parametrize("passes", ["general", "dense"])
@pytest.mark.parametrize("entropy", ["none", "loss"])
def test_a_loss_of_whole_responses_has_the_same_gradients_in_chunks(
    passes: str, entropy: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients() -> torch.Tensor:
        model = make_model("qwen2-tied")
        optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
        batches = [assemble(groups(), np.arange(5)), assemble(groups(), np.arange(5, 12))]
        if passes == "general":
            PolicyForward(model, 0.7, "float32").backward(batches, coupled_loss, entropy, whole=True)
        else:
            DensePasses(model, optimizer, 0.7, "float32").backward(batches, coupled_loss, entropy, whole=True)
        return optimizer.gradients.clone()

    whole = gradients()
    request.getfixturevalue("small_chunks")
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.MOST", ROWS)
    monkeypatch.setattr("yatt_core.engines.train.torch.dense_head.FEWEST", ROWS)
    assert float(whole.norm()) > 0.1
    torch.testing.assert_close(gradients(), whole, atol=1e-6 * float(whole.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen2-tied", "gemma3_text"])
@pytest.mark.parametrize("entropy", ["none", "metric", "loss"])
def test_chunks_give_the_gradients_of_the_whole(name: str, entropy: Any, request: pytest.FixtureRequest) -> None:
    """Gemma-3 can cap its logits after the head, in each chunk too."""

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        capped = Gemma3TextConfig(**SIZES, final_logit_softcapping=0.5)
        model = Gemma3ForCausalLM(capped).eval() if name == "gemma3_text" else make_model(name)
        batches = [assemble(groups(), np.arange(12)), assemble(groups(), np.arange(0))]
        PolicyForward(model, 0.7, "float32").backward(batches, token_loss, entropy)
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    whole = gradients()
    request.getfixturevalue("small_chunks")
    for found, wanted in zip(gradients(), whole, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6 * float(wanted.abs().max()), rtol=1e-5)
