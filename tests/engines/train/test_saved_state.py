"""Checkpoints across engines and layouts, of older versions, and what a rank reads of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import CLIP, SEVERAL_STEPS, Expected, expect, spec_of
from tests.engines.train.support import make_engine, make_spec, random_task, saved_tensors, update, weights_of
from tests.needs import NEEDS_MEGATRON
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.digests import weights_digest
from yatt_core.engines.train.base.buffers import FreezeBuffers
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.protocols.engines import RankContext
from yatt_core.wire.parts import DIVIDED_BYTES, TensorPart


def megatron(tensors: int, stages: int, copies: int = 1) -> dict[str, Any]:
    sizes = {
        "tensor_model_parallel_size": tensors,
        "pipeline_model_parallel_size": stages,
        "data_parallel_size": copies,
    }
    return {"kind": "megatron", "dtype": "float32", "micro_batch_tokens": 60, **sizes}


ENGINES: dict[str, tuple[int, dict[str, Any]]] = {
    "torch-2": (2, {"kind": "torch", "ranks": 2, "micro_batch_tokens": 60}),
    "fsdp2-2": (2, {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}),
    "fsdp2-3": (3, {"kind": "fsdp2", "ranks": 3, "dtype": "float32", "micro_batch_tokens": 60}),
    "tp2": (2, megatron(2, 1)),
    "pp2": (2, megatron(1, 2)),
    "tp2-pp2": (4, megatron(2, 2)),
    "dp2": (2, megatron(1, 1, 2)),
}
WAYS = [
    ("torch-2", "fsdp2-3"),
    ("fsdp2-2", "tp2"),
    ("fsdp2-3", "fsdp2-2"),
    ("tp2", "pp2"),
    ("pp2", "fsdp2-2"),
    ("tp2-pp2", "dp2"),
    ("dp2", "tp2-pp2"),
    ("tp2", "torch-2"),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return expect(tmp_path_factory.mktemp("expected"), "qwen2")


@pytest.mark.verify
@NEEDS_MEGATRON
@pytest.mark.parametrize(("saver", "loader"), WAYS, ids=[f"{saver}-to-{loader}" for saver, loader in WAYS])
def test_a_run_saved_under_one_engine_and_layout_continues_under_another(
    expected: Expected, tmp_path: Path, saver: str, loader: str
) -> None:
    """The digest of the saved weights is that of the weights that the saving ranks would send."""
    ranks, engine = ENGINES[saver]
    saved = tmp_path / "saved"
    first = Job(spec_of(engine, CLIP, SEVERAL_STEPS), expected.model, (1, 2), save=saved, save_at=2)
    found = run_ranks(ranks, [first], tmp_path / "saving")[0][0]
    assert open_tensors(saved, "weights").digest() == weights_digest(found.weights)
    ranks, engine = ENGINES[loader]
    second = Job(spec_of(engine, CLIP, SEVERAL_STEPS), expected.model, (3, 4), restore=(saved, 2))
    weights = run_ranks(ranks, [second], tmp_path / "loading")[0][0].weights
    assert sorted(weights) == sorted(expected.several_weights)
    for name, array in expected.several_weights.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-6, rtol=0, err_msg=name)


def as_before(checkpoint: Path) -> None:
    """Turns a checkpoint into one of an older version: one file of whole tensors in place of each subfolder, no index."""
    for path in checkpoint.glob("*.index"):
        path.unlink()
    for name in ("weights", "optimizer", "reference"):
        tensors = saved_tensors(checkpoint, name)
        shutil.rmtree(checkpoint / name)
        safetensors.numpy.save_file(tensors, checkpoint / f"{name}.safetensors", metadata={"format": "pt"})
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "optimizer.safetensors",
        "reference.safetensors",
        "state.json",
        "weights.safetensors",
    ]


def test_a_checkpoint_of_an_older_version_is_restored_bit_for_bit(tmp_path: Path, model_folder: Path) -> None:
    spec = make_spec(algorithm={"kl": {"where": "loss"}, "mini_batches": 2})
    engine = make_engine(spec, tmp_path, model_folder)
    checkpoint = tmp_path / "checkpoint"
    update(engine, random_task(tmp_path, 1))
    checkpoint.mkdir()
    engine.freeze_state()(checkpoint)
    expected = update(engine, random_task(tmp_path, 2))
    as_before(checkpoint)
    restored = make_engine(spec, tmp_path, model_folder)
    restored.restore(checkpoint, 1)
    found = update(restored, random_task(tmp_path, 2))
    assert (found.fingerprint, found.metrics) == (expected.fingerprint, expected.metrics)


@pytest.mark.verify
@NEEDS_MEGATRON
@pytest.mark.parametrize("name", ["fsdp2-2", "tp2"])
def test_sharded_trainers_restore_a_checkpoint_of_an_older_version(
    expected: Expected, tmp_path: Path, name: str
) -> None:
    old = tmp_path / "old"
    shutil.copytree(expected.checkpoint, old)
    as_before(old)
    ranks, engine = ENGINES[name]
    jobs = [
        Job(spec_of(engine, CLIP, SEVERAL_STEPS), expected.model, (3, 4), restore=(checkpoint, 2))
        for checkpoint in (old, expected.checkpoint)
    ]
    one, other = run_ranks(ranks, jobs, tmp_path / "ranks")[0]
    assert [receipt.fingerprint for receipt in one.receipts] == [receipt.fingerprint for receipt in other.receipts]


def test_ranks_with_the_same_weights_save_them_together(tmp_path: Path, model_folder: Path) -> None:
    """Each of two ranks of the torch trainer holds everything and saves about half."""
    spec = make_spec(trainer={"engine": {"kind": "torch", "ranks": 2}})
    engine = TorchTrainEngine(spec, RankContext(tmp_path, tmp_path / "inputs", str(model_folder), 0))
    engine.initialise()
    sizes = []
    for rank in range(2):
        engine.policy.world.rank = rank
        frozen = engine.freeze_state()
        sizes.append(frozen.nbytes)
        frozen(tmp_path)
        assert (frozen.rank, frozen.ranks, "state.json" in frozen.files) == (rank, 2, rank == 0)
    engine.policy.world.rank = 0
    assert max(sizes) < 1.2 * min(sizes)
    files = open_tensors(tmp_path, "weights")
    files.require_whole()
    assert files.digest() == weights_digest(weights_of(engine))


def test_buffers_are_reused_and_what_never_changes_is_not_copied() -> None:
    values = torch.arange(2 * DIVIDED_BYTES // 4, dtype=torch.float32).reshape(-1, 1024)
    part = TensorPart("x", tuple(values.shape), (0, 0), values, (0, 1))
    buffers = FreezeBuffers()
    (first,), (again,) = (buffers.fill("weights", [part], 1) for _ in range(2))
    assert np.shares_memory(first.values, again.values)
    assert first.offsets == (len(values) // 2, 0) and buffers.nbytes == values.nbytes // 2
    values += 1
    assert float(first.values[0, 0]) == values[len(values) // 2, 0] - 1, "the copy does not change with the tensor"
    (kept,) = buffers.fill("reference", [part], 0, changes=False)
    assert np.shares_memory(kept.values, values.numpy())


def test_a_tensor_of_another_shape_or_type_gets_another_buffer() -> None:
    """A workload's state may grow, shrink, or change its type between two checkpoints."""
    buffers = FreezeBuffers()
    for values in (
        torch.arange(3, dtype=torch.float32),
        torch.ones(1),
        torch.full((5,), 0.1, dtype=torch.float64),
        torch.full((5,), 0.1, dtype=torch.float32),
    ):
        part = TensorPart("x", tuple(values.shape), (0,), values, (0,))
        (kept,) = buffers.fill("weights", [part], 0)
        assert kept.values.dtype == values.numpy().dtype
        assert kept.values.tolist() == values.tolist()
        assert buffers.nbytes == values.nbytes, "the old buffer is not kept"
    assert buffers.fill("weights", [], 0) == []
    assert buffers.nbytes == 0, "nor is that of a tensor that is gone"
