"""Merged weights: the bits of the direct sum, in little memory, or a refusal."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from flows.soups.merging import MergedWeights
from yatt_core.digests import weights_digest
from yatt_core.errors import ConfigurationError
from yatt_core.wire import part_files
from yatt_core.wire.part_files import PartFiles, digest_of
from yatt_core.wire.whole_files import INDEX, write_whole_tensors

COEFFICIENTS = [1.5, -0.9, 0.4]


def stored(folder: Path, seed: int, **others: Any) -> tuple[PartFiles, dict[str, Any]]:
    random = np.random.default_rng(seed)
    tensors = {
        "embedding": random.standard_normal((7, 5)).astype(np.float32),
        "norm": random.standard_normal(5).astype(np.float32),
        "scalar": np.array(random.standard_normal(), dtype=np.float32),
        "positions": np.arange(4),
        **others,
    }
    path = folder / f"{seed}.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return PartFiles([path]), tensors


def test_a_merged_model_has_the_bits_of_the_direct_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "BLOCK_BYTES", 40)  # two rows
    models, tensors = zip(*(stored(tmp_path, seed) for seed in range(3)), strict=True)
    merged = MergedWeights(models, COEFFICIENTS)
    (tmp_path / "out").mkdir()
    written = write_whole_tensors(merged, tmp_path / "out")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    for name in ("embedding", "norm", "scalar"):
        expected = np.zeros_like(tensors[0][name])
        for coefficient, own in zip(COEFFICIENTS, tensors, strict=True):
            expected += np.float32(coefficient) * own[name]
        assert found[name].dtype == np.float32 and np.array_equal(found[name], expected), name
    assert np.array_equal(found["positions"], np.arange(4))
    assert digest_of(merged) == weights_digest(found)
    assert written.entries.keys() == {"model.safetensors"} and written.bytes == sum(t.nbytes for t in found.values())


def test_bfloat16_is_summed_in_float32_and_rounded_once(tmp_path: Path) -> None:
    tensors = [torch.randn(64, 8, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in range(3)]
    for number, tensor in enumerate(tensors):
        safetensors.torch.save_file({"weight": tensor}, tmp_path / f"{number}.safetensors")
    models = [PartFiles([tmp_path / f"{number}.safetensors"]) for number in range(3)]
    (tmp_path / "out").mkdir()
    write_whole_tensors(MergedWeights(models, COEFFICIENTS), tmp_path / "out")
    total = torch.zeros(64, 8)
    for coefficient, tensor in zip(COEFFICIENTS, tensors, strict=True):
        total += tensor.float() * coefficient
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")["weight"], total.bfloat16())


def test_large_models_are_merged_in_little_memory_into_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yatt_core.wire.whole_files.FILE_BYTES", 12 << 20)
    monkeypatch.setattr(part_files, "BLOCK_BYTES", 1 << 20)
    layers = {f"layer.{number}": np.ones((1024, 2048), np.float32) for number in range(4)}
    models = [stored(tmp_path, seed, **layers)[0] for seed in range(2)]
    size = sum(models[0].nbytes(name) for name in models[0].shapes)
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    try:
        written = write_whole_tensors(MergedWeights(models, [0.75, 0.25]), tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 2
    assert len(written.weights) == 4 and INDEX in written.entries
    merged = [safetensors.numpy.load_file(tmp_path / "out" / name) for name in written.weights]
    assert all(np.all(tensor == 1.0) for file in merged for name, tensor in file.items() if name.startswith("layer"))


def test_models_of_other_shapes_types_or_names_are_not_merged(tmp_path: Path) -> None:
    own = stored(tmp_path, 0)[0]
    others = [
        stored(tmp_path, 1, norm=np.zeros(6, np.float32))[0],
        stored(tmp_path, 2, norm=np.zeros(5, np.float64))[0],
        stored(tmp_path, 3, bias=np.zeros(5, np.float32))[0],
    ]
    for other, named in zip(others, ("norm", "norm", "bias"), strict=True):
        with pytest.raises(ConfigurationError, match=named):
            MergedWeights([own, other], [0.5, 0.5])
    shifted = stored(tmp_path, 4, positions=np.arange(1, 5))[0]
    with pytest.raises(ConfigurationError, match="positions"):
        digest_of(MergedWeights([own, shifted], [0.5, 0.5]))
    with pytest.raises(ConfigurationError, match="coefficients"):
        MergedWeights([own], [0.5, 0.5])
