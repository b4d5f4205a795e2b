"""What a vLLM engine computes with is compared with what was sent, although vLLM fuses, packs and divides its weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.needs import NEEDS_VLLM
from yatt_core.engines.rectangles import part_digests
from yatt_core.engines.rollout.vllm.held_weights import HeldTensors, joined_parts
from yatt_core.wire.parts import TensorPart

HEAD = 2
WIDTH = 6
VOCABULARY = 5
SHAPES = {
    "q": (8, WIDTH),
    "k": (HEAD, WIDTH),
    "v": (HEAD, WIDTH),
    "gate": (4, WIDTH),
    "up": (4, WIDTH),
    "o": (WIDTH, 8),
}


class Layer(nn.Module):
    """A module with the attributes that vLLM's have."""

    def __init__(self, weight: torch.Tensor, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        vars(self).update(attributes)


def packed(layer: Layer) -> Layer:
    """Drops the weight, as vLLM does on CPUs, once its kernel has a copy."""
    copy = layer.weight.detach().clone()
    layer.cpu_linear = lambda x, weight, bias: nn.functional.linear(x, copy, bias)
    layer.input_size_per_partition = copy.shape[1]
    layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    return layer


def worker(rank: int, whole: dict[str, torch.Tensor], keys: torch.Tensor) -> HeldTensors:
    """One of two workers: its half of the queries, all keys and values, and a vocabulary that is padded.

    keys: those that it holds.
    """
    half = {name: tensor.chunk(2)[rank] for name, tensor in whole.items()}
    two = {"tp_rank": rank, "tp_size": 2}
    fused = Layer(torch.cat([half["q"], keys, whole["v"]]), num_kv_heads=1, **two)
    starts = {"q": 0, "k": 4, "v": 4 + HEAD}
    sizes = {"q": 4, "k": HEAD, "v": HEAD}
    fused._get_shard_offset_mapping = starts.get
    fused._get_shard_size_mapping = sizes.get  # type: ignore[assignment]
    rows = slice(0, 3) if rank == 0 else slice(3, VOCABULARY)
    embeddings = nn.functional.pad(whole["embed"][rows], (0, 0, 0, 4 - (rows.stop - rows.start)))
    indices = SimpleNamespace(org_vocab_start_index=rows.start, num_org_elements=rows.stop - rows.start)
    model = nn.ModuleDict(
        {
            "qkv_proj": fused,
            "gate_up_proj": packed(Layer(torch.cat([half["gate"], half["up"]]), output_sizes=[4, 4], **two)),
            "o_proj": packed(Layer(whole["o"].chunk(2, 1)[rank], **two)),
            "norm": Layer(whole["norm"]),
            "embed": Layer(embeddings, shard_indices=indices, **two),
        }
    )
    fuses = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    vars(model)["packed_modules_mapping"] = fuses
    return HeldTensors(model)


def test_tensors_are_found_in_what_two_workers_hold() -> None:
    noise = torch.Generator().manual_seed(0)
    shapes = {**SHAPES, "norm": (WIDTH,), "embed": (VOCABULARY, WIDTH)}
    whole = {name: torch.randn(shape, generator=noise) for name, shape in shapes.items()}
    names = {name: f"{name}_proj.weight" if name in SHAPES else f"{name}.weight" for name in whole}

    def held(workers: list[HeldTensors], name: str) -> torch.Tensor | None:
        parts = [each.part(names[name], tuple(whole[name].shape)) for each in workers]
        return joined_parts(tuple(whole[name].shape), [part for part in parts if part is not None])

    workers = [worker(rank, whole, whole["k"]) for rank in range(2)]
    for name, tensor in whole.items():
        assert torch.equal(held(workers, name), tensor), name
    other = whole["k"].clone()
    other[0, 0] += 1
    found = held([workers[0], worker(1, whole, other)], "k")
    assert found is not None and found.isnan().all(), "two workers hold different copies"
    assert held(workers[:1], "o") is None, "half of it is missing"
    names["q"] = "other_proj.weight"
    assert held(workers, "q") is None


def wanted(case: Any, version: int, dtype: str) -> dict[Any, str]:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in case.weights(version).items()}
    return part_digests((TensorPart(n, tuple(t.shape), (0,) * t.dim(), t, (0,)) for n, t in tensors.items()), dtype)


def differing(case: Any, version: int, dtype: str = "float32") -> list[str]:
    digests = wanted(case, version, dtype)
    found = case.engine.rectangle_digests(list(digests))
    return [rectangle.name for rectangle, one in zip(digests, found, strict=True) if digests[rectangle] != one]


@NEEDS_VLLM
@pytest.mark.verify
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_has_what_it_was_sent(make_vllm_case: Any, dtype: str) -> None:
    case = make_vllm_case(dtype=dtype)
    for version in (0, 1):
        case.engine.update_weights(case.weights(version), version)
        assert not differing(case, version, dtype)
    assert sorted(differing(case, 0, dtype)) == sorted(case.weights(0))


@NEEDS_VLLM
@pytest.mark.verify
def test_two_devices_are_compared_as_one(tmp_path: Path) -> None:
    from tests.engines.rollout.cases import build_model, vllm_case_of

    build_model(tmp_path, "paired")
    case = vllm_case_of(tmp_path, tensor_parallel_size=2)
    try:
        case.engine.update_weights(case.weights(1), 1)
        assert not differing(case, 1)
    finally:
        case.engine.close()
