"""The engines on real GPUs, compared with cores: skipped where there are none. The same checks run on cores alone.

Each engine is in a process of its own, which sees only the devices that it is given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.transfers import CORES, VISIBLE, transfers_between
from benchmarks.grow.ranks import Rank, on_ranks
from tests.engines.train.support import make_model_folder, make_spec, random_task, update, weights_of
from tests.needs import NEEDS_GPU, NEEDS_MEGATRON, NEEDS_TWO_GPUS
from yatt_core.spec.run import RunSpec

pytestmark = pytest.mark.verify
TORCH: dict[str, Any] = {"kind": "torch", "ranks": 1}
FSDP2: dict[str, Any] = {"kind": "fsdp2", "ranks": 1, "dtype": "float32"}
MEGATRON: dict[str, Any] = {"kind": "megatron", "dtype": "float32", "data_parallel_size": 1}
UPDATES = 3


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize(
    ("devices", "ways"),
    [
        pytest.param((CORES, CORES, CORES), ("gloo", "gloo", "gloo"), id="cores"),
        pytest.param(("0", "0"), ("memory", "memory"), marks=NEEDS_GPU, id="one GPU"),
        pytest.param(("0", "1"), ("nccl", "nccl"), marks=NEEDS_TWO_GPUS, id="two GPUs"),
        pytest.param(("0", "0", "1"), ("memory+nccl", "memory", "nccl"), marks=NEEDS_TWO_GPUS, id="both ways"),
    ],
)
def test_engines_hold_what_the_trainer_sent(
    tmp_path: Path, policy: Path, devices: Sequence[str], ways: Sequence[str]
) -> None:
    rollout = {"engine": {"kind": "torch", "dtype": "bfloat16"}}
    spec = make_spec(exact=False, trainer={"engine": TORCH, "sync_bucket_bytes": 4096}, rollout=rollout)
    trainer, *engines = transfers_between(devices, tmp_path, policy, spec)
    assert (trainer.way, *(engine.way for engine in engines)) == tuple(ways)
    assert trainer.digests and all(engine.digests == trainer.digests for engine in engines)
    assert all(engine.nbytes == trainer.nbytes for engine in engines)


@dataclass(frozen=True)
class Course:
    """Three updates. losses: of each. weights: after the last."""

    losses: list[float]
    weights: dict[str, np.ndarray]


def course(rank: Rank, device: str, spec: RunSpec, folder: Path, model: Path) -> Course:
    """Takes the updates on a device."""
    os.environ[VISIBLE] = device  # before anything touches a GPU
    from yatt_core.protocols.engines import RankContext

    engine: Any = rank.engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.initialise()
    receipts = [update(engine, random_task(folder, iteration)) for iteration in range(1, UPDATES + 1)]
    return Course([receipt.metrics["loss"] for receipt in receipts], weights_of(engine))


@pytest.mark.parametrize("device", [CORES, pytest.param("0", marks=NEEDS_GPU)], ids=["cores", "GPU"])
@pytest.mark.parametrize("engine", [FSDP2, pytest.param(MEGATRON, marks=NEEDS_MEGATRON)], ids=["fsdp2", "megatron"])
def test_sharded_trainers_learn_on_a_device_as_the_torch_trainer_does_on_cores(
    tmp_path: Path, policy: Path, engine: dict[str, Any], device: str
) -> None:
    specs = {kind: make_spec(exact=False, trainer={"engine": each}) for kind, each in (("t", TORCH), ("s", engine))}
    expected = on_ranks(1, course, CORES, specs["t"], tmp_path / "torch", policy)[0]
    found = on_ranks(1, course, device, specs["s"], tmp_path / "sharded", policy)[0]
    tolerance = 1e-5 if device == CORES else 1e-3
    assert found.losses == pytest.approx(expected.losses, rel=tolerance, abs=tolerance)
    assert found.weights.keys() == expected.weights.keys()
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], array, atol=tolerance, rtol=0, err_msg=name)
