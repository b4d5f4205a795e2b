"""The parts of the Megatron-Core trainer that need no process group: where tensors go, and which models it accepts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config

from yatt_core.engines.train.megatron.architecture import Architecture, architecture_of
from yatt_core.engines.train.megatron.bridge import Cut, place_of, shard_of, whole_of
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.forward import widened
from yatt_core.engines.train.model.forward import MicroBatch
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.accelerated import MegatronTrainer

SHAPE = Architecture(layers=2, heads=8, groups=4, head_size=3, vocabulary=25, tied=False)
PARTS: dict[Cut, list[tuple[int, ...]]] = {
    "whole": [(7,)],
    "columns": [(5, 8)],
    "gate_up": [(12, 5), (12, 5)],
    "query_key_value": [(24, 5), (12, 5), (12, 5)],
    "vocabulary": [(25, 6)],
}


@pytest.mark.parametrize("cut", PARTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_join_to_the_original_tensors(cut: Cut, ranks: int) -> None:
    parts = [torch.randn(shape) for shape in PARTS[cut]]
    shards = [shard_of(parts, cut, SHAPE, rank, ranks) for rank in range(ranks)]
    assert len({shard.shape for shard in shards}) == 1
    for part, found in zip(parts, whole_of(shards, cut, SHAPE), strict=True):
        assert torch.equal(part, found)


def test_a_rank_has_whole_groups_of_heads() -> None:
    """A group's queries come first, then its keys, then its values; biases likewise."""
    queries, keys, values = (torch.arange(rows) + start for rows, start in ((24, 0), (12, 100), (12, 200)))
    first = shard_of([queries, keys, values], "query_key_value", SHAPE, 0, 4)
    assert first.tolist() == [*range(6), 100, 101, 102, 200, 201, 202]


def test_parameters_of_a_later_stage_have_their_own_layers_names() -> None:
    place = place_of("decoder.layers.1.mlp.linear_fc1.weight", 4)
    assert place.names == ("model.layers.5.mlp.gate_proj.weight", "model.layers.5.mlp.up_proj.weight")
    assert place_of("output_layer.weight", 4).names == ("lm_head.weight",)


SMALL: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (GPT2Config(), {}, "llama, qwen2, qwen3.* 'gpt2'.* torch or fsdp2"),
        (LlamaConfig(**SMALL, attention_bias=True), {}, "attention_bias False.* True"),
        (Qwen2Config(**SMALL, hidden_act="gelu"), {}, "hidden_act 'silu'.* 'gelu'"),
        (
            Qwen2Config(**SMALL),
            {"tensor_model_parallel_size": 4},
            r"tensor_model_parallel_size: 4 .* 2 key/value heads",
        ),
        (Qwen2Config(**SMALL), {"pipeline_model_parallel_size": 2}, r"pipeline_model_parallel_size: 2 .* 3 layers"),
        (
            Qwen2Config(**SMALL, intermediate_size=47),
            {"tensor_model_parallel_size": 2},
            r"tensor_model_parallel_size: 2 .* 47",
        ),
    ],
)
def test_models_that_cannot_be_trained_are_named(config: Any, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        architecture_of(config, MegatronTrainer(**options))


def test_widened_rows_keep_what_they_predict() -> None:
    tokens = torch.arange(10).reshape(2, 5)
    empty = torch.zeros(0).long()
    found = widened(MicroBatch(tokens, torch.tensor([3, 5, 9]), empty, *[empty.numpy()] * 5), 4)
    assert found.tokens.shape == (2, 8)
    assert found.tokens.flatten()[found.predicting].tolist() == [3, 5, 9]
    assert found.tokens[:, 5:].sum() == 0


def test_the_patches_for_the_cpu_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("megatron.core")
    before = (torch.cuda.current_device, torch.cuda.get_rng_state, torch.cuda.synchronize)
    with on_this_device():
        assert torch.zeros(1, device="cuda").device.type == "cpu"
        assert torch.zeros(1).cuda().type() == "torch.cuda.FloatTensor"
    assert (torch.cuda.current_device, torch.cuda.get_rng_state, torch.cuda.synchronize) == before
    assert torch.zeros(1).type() == "torch.FloatTensor"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with on_this_device():
        assert torch.zeros(1).type() == "torch.FloatTensor", "nothing is patched if there is a GPU"
