"""Predicted activations against torch's actual allocations for several architectures, precisions and dominant terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.memory import peak_of
from tests.planning.examples import spec_7b
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.planning.memory.activations import MicroBatchShape, torch_forward, torch_training
from yatt_core.planning.shape import shape_of
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.spec.sections.trainer import AdamWSpec

ROWS = 8
TOKENS = 64
COUNTED = 24


def micro_batch(vocabulary: int) -> MicroBatch:
    """Returns a micro-batch of equally long rows, whose loss counts each row's last tokens."""
    places = (torch.arange(ROWS)[:, None] * TOKENS + torch.arange(TOKENS - COUNTED, TOKENS)[None]).reshape(-1)
    tokens = torch.arange(ROWS * TOKENS).remainder(vocabulary).reshape(ROWS, TOKENS)
    rows = np.repeat(np.arange(ROWS), COUNTED)
    starts = np.arange(ROWS) * TOKENS
    sizes = np.full(ROWS, TOKENS)
    return MicroBatch(
        tokens, places, tokens.reshape(-1)[places], np.arange(len(places)), rows, starts, sizes - COUNTED, sizes
    )


@pytest.mark.parametrize(
    ("architecture", "dtype", "vocabulary", "tied"),
    [
        ("qwen2", "float32", 4096, True),
        ("qwen2", "float32", 32, True),
        ("qwen3", "float32", 2048, False),
        ("llama", "float32", 2048, False),
        ("qwen2", "bfloat16", 2048, True),
    ],
)
def test_a_step_of_the_trainer(tmp_path: Path, architecture: str, dtype: str, vocabulary: int, tied: bool):
    model = ModelFromConfig(
        architecture=architecture, hidden_size=128, layers=3, heads=4, key_value_heads=2, intermediate_size=384,
        tie_embeddings=tied,
    )  # fmt: skip
    make_model(model, vocabulary, 0, tmp_path)
    network = load_causal_lm(str(tmp_path), "float32")
    FlatAdamW(network, AdamWSpec())
    forward = PolicyForward(network, 0.7, dtype)
    batch = micro_batch(vocabulary)

    def step() -> None:
        forward.backward([batch], lambda _part, log_probs, _entropies: log_probs.sum(), "metric")

    def without_gradients() -> None:
        with torch.no_grad():
            forward.log_probs(batch)

    step()
    shape = shape_of(spec_7b().model_copy(update={"model": model}), vocabulary)
    sizes = MicroBatchShape(ROWS, ROWS * TOKENS, ROWS * COUNTED)
    assert torch_training(shape, sizes, dtype, entropy_gradient=False) == pytest.approx(peak_of(step), rel=0.1)
    if dtype == "float32":
        assert torch_forward(shape, sizes, dtype) == pytest.approx(peak_of(without_gradients), rel=0.1)
