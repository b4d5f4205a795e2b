"""Shapes: parameters as counted by transformers, from sizes or a config.json, and errors that name the known types."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.planning.examples import spec_7b, spec_72b
from yatt_core.errors import ConfigurationError
from yatt_core.models.model_folder import _text_config, _vision_language_config
from yatt_core.planning.shape import ModelShape, UnknownShapeError, shape_of, shape_of_config
from yatt_core.spec.sections.model import ModelFromConfig, VisionSpec


def counted(model: ModelFromConfig, vocabulary: int) -> int:
    """Counts the modules' own parameters, without allocating memory."""
    from transformers import AutoModelForCausalLM, LlavaForConditionalGeneration

    config = _text_config(model, vocabulary)
    with torch.device("meta"):
        if model.vision is None:
            network = AutoModelForCausalLM.from_config(config)
        else:
            network = LlavaForConditionalGeneration(_vision_language_config(model.vision, config))
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"architecture": "qwen2", "tie_embeddings": True},
        {"architecture": "qwen2", "tie_embeddings": False, "key_value_heads": 2},
        {"architecture": "qwen3"},
        {"architecture": "llama", "tie_embeddings": False},
        {"architecture": "qwen2", "vision": VisionSpec()},
    ],
)
def test_parameters_are_those_of_the_modules(options):
    model = ModelFromConfig(**options)
    spec = spec_7b().model_copy(update={"model": model})
    assert shape_of(spec, 500).parameters == counted(model, 500)


def test_the_examples_have_the_sizes_they_are_named_after():
    assert shape_of(spec_7b(), 0).parameters == 7_615_616_512, "as in the published model"
    assert shape_of(spec_72b(), 0).parameters == 72_706_203_648


def test_the_cache_of_a_token():
    # Two of 28 layers with four heads of 128, in bfloat16: 57 kB, as in the placement's cost model.
    assert 2 * shape_of(spec_7b(), 0).cached_token_values() == 57_344


def test_a_config_file_gives_the_same_shape(tmp_path: Path):
    sizes = {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sizes))
    for model in (f"{{kind: config_file, path: {path}}}", f"{{kind: folder, path: {tmp_path}}}"):
        assert shape_of(spec_7b(f"model={model}"), 0) == shape_of(spec_7b(), 0)


def test_an_unknown_shape_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"model.path: x: .*model_type 'mixtral' .*llama, mistral"):
        shape_of_config({"model_type": "mixtral"}, "model.path: x")
    with pytest.raises(ConfigurationError, match=r"model.path: x: hidden_size, .*at least 1"):
        shape_of_config({"model_type": "llama", "vocab_size": 9}, "model.path: x")
    with pytest.raises(UnknownShapeError, match=r"none\.json cannot be read: No such file"):
        shape_of(spec_7b(f"model={{kind: config_file, path: {tmp_path / 'none.json'}}}"), 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": "64"}, "head_dim: .*at least 1"),
        ({"head_dim": 2.5}, "head_dim: .*at least 1"),
        ({"num_key_value_heads": -2}, "num_key_value_heads: .*at least 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 .*num_key_value_heads 3"),
        ({"num_attention_heads": 65}, "num_attention_heads 65 .*hidden_size 64"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings: .*at least 1"),
        ({"vocab_size": True}, "vocab_size: .*at least 1"),
        ({"text_config": "none"}, "text_config: .*mapping"),
    ],
)
def test_invalid_sizes_are_named(change, said):
    sizes = {"model_type": "qwen2", "vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 80}
    with pytest.raises(ConfigurationError, match=f"model.path: x: {said}"):
        shape_of_config({**sizes, "num_attention_heads": 4, **change}, "model.path: x")


def test_operations_of_a_token():
    shape = ModelShape(100, 8, 2, 2, 1, 4, 16, tied=False)
    assert shape.forward_flops(0) == 2 * (shape.parameters - 800)
    assert shape.forward_flops(10) - shape.forward_flops(0) == 4 * 2 * 8 * 10


def test_a_pipe_is_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UnknownShapeError, match=r"model\.path: .*config\.json cannot be read: not a regular file"):
        shape_of(spec_7b(f"model={{kind: config_file, path: {tmp_path / 'config.json'}}}"), 0)
