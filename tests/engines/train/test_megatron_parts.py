"""The parts of the Megatron-Core trainer that need no process group: where tensors go, and which models it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config

from tests.engines.train.largest import Largest
from yatt_core.engines.train.megatron.architecture import Architecture, architecture_of, transformer_config
from yatt_core.engines.train.megatron.attention import CausalAttention
from yatt_core.engines.train.megatron.bridge import Cut, ParameterMapping, place_of, shard_of, whole_of
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.forward import widened
from yatt_core.engines.train.megatron.regions import regions_in, regions_of
from yatt_core.engines.train.model.forward import MicroBatch
from yatt_core.errors import ConfigurationError
from yatt_core.models.tensor_files import Slices
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


@dataclass
class Stored:
    """A tensor in a file; counts the elements that are read."""

    tensor: torch.Tensor
    read: int = 0

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def __getitem__(self, slices: Slices, /) -> torch.Tensor:
        found = self.tensor[slices]
        self.read += found.numel()
        return found


@pytest.mark.parametrize("cut", PARTS)
def test_a_rank_reads_its_own_part_and_nothing_else(cut: Cut) -> None:
    for rank in range(4):
        stored = [Stored(torch.ones(shape)) for shape in PARTS[cut]]
        shard = shard_of(stored, cut, SHAPE, rank, 4)
        assert sum(part.read for part in stored) == shard.sum(), "padding is 0, and read from nowhere"
        assert cut == "whole" or shard.numel() < 0.3 * sum(part.tensor.numel() for part in stored) + 12


def test_attention_is_causal_and_builds_no_square() -> None:
    length = 96
    rows = 2
    heads = 4
    groups = 2
    size = 8
    noise = torch.Generator().manual_seed(0)
    query = torch.randn(length, rows, heads, size, generator=noise)
    key, value = (torch.randn(length, rows, groups, size, generator=noise) for _ in range(2))
    with Largest() as largest:
        found = CausalAttention(None, 1)(query, key, value, None)
    q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
    k, v = (part.repeat_interleave(heads // groups, 1) for part in (k, v))
    scores = (q @ k.transpose(-1, -2) / size**0.5).masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    expected = (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert largest.elements < rows * heads * length * length / 4


def test_kernels_are_fused_where_there_is_a_gpu() -> None:
    pytest.importorskip("megatron.core")
    config = Qwen2Config(**SMALL)
    engine = MegatronTrainer(dtype="float32")
    with on_this_device():
        found = [transformer_config(config, engine, fused) for fused in (True, False)]
    assert [(one.bias_activation_fusion, one.bias_dropout_fusion) for one in found] == [(True, True), (False, False)]


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


@pytest.mark.parametrize("cut", PARTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("pieces", [1, 3, 5])
def test_regions_hold_the_same_numbers_as_the_shards(cut: Cut, ranks: int, pieces: int) -> None:
    """Also holds if the flattened parameter is divided into ranges that begin and end within rows."""
    parts = [torch.randn(shape) for shape in PARTS[cut]]
    place = ParameterMapping(tuple(str(number) for number in range(len(parts))), cut)
    found = [torch.full_like(part, torch.nan) for part in parts]
    for rank in range(ranks):
        shard = shard_of(parts, cut, SHAPE, rank, ranks)
        again = torch.zeros(shard.numel())
        bounds = [shard.numel() * number // pieces for number in range(pieces + 1)]
        for start, stop in pairwise(bounds):
            numbers = shard.flatten()[start:stop]
            copy = again[start:stop]
            for whole in regions_of(place, tuple(shard.shape), SHAPE, rank, ranks):
                regions = list(regions_in(whole, start, stop))
                assert len(regions) <= 3 and (pieces > 1 or len(regions) <= 1)
                for region in regions:
                    values = region.values(numbers)
                    assert region.shape == PARTS[cut][int(region.name)]
                    found[int(region.name)][region.box.slices((0,) * values.ndim)] = values
                    region.put(copy, values)
        kept = shard.flatten() if cut != "vocabulary" else shard.flatten()[: max(0, 25 - rank * len(shard)) * 6]
        assert torch.equal(again[: len(kept)], kept)
    for part, joined in zip(parts, found, strict=True):
        assert torch.equal(part, joined)
