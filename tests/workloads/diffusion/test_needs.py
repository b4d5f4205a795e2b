"""What diffusion says it needs, before anything is built, against what its ranks and samplers hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from benchmarks.memory import peak_of
from benchmarks.workloads.alone import begun
from tests.matrix import in_verify
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.clip_folders import write_clip
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.workload.ranks import WorkloadRanks
from yatt_core.workloads.contract import Draw, Needs, RankNeeds, RunFacts
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.scorers import ClipScorer
from yatt_core.workloads.diffusion.sharded_drawing import ShardedDrawing

pytestmark = NEEDS_DIFFUSERS
DRAW = Draw(seed=5, iteration=1, number=0)
SMALL: dict[str, Any] = {
    "heads": 4, "head_width": 24, "layers": 2, "pretraining": 11, "group": 4, "rows": 48, "steps": 3, "window": 2,
    "evaluation_steps": 4, "held_out": 4, "kl": 0.1,
}  # fmt: skip
ADAPTERS = {"adapters": {"rank": 2, "alpha": 4.0}}
VARIANTS: dict[str, dict[str, Any]] = {
    "sd3": {},
    "flux": {"network": "flux", "guidance": 3.5},
    "qwen_image": {"network": "qwen_image"},
    "adapters": ADAPTERS,
    "nft": {"method": "nft", "kl": None, "window": None},
    "dpo": {"method": "dpo", "kl": None, "window": None, **ADAPTERS},
    "unet": {"network": "unet", "patch": 2, "heads": 2, "head_width": 8, "layers": 1},
}
"""What differs from `SMALL`; None for a setting that is left out."""
LEARNT = {"nft": 12 * 4, "dpo": 12 * 2}
"""Passes with gradients, each through one image; those of others are of the window's two steps."""


class Watched(ShapeDrawing):
    """Counts the gradients of an update."""

    gradients = 0

    def _limit_gradient(self) -> float:
        self.gradients = held(weight.grad for weight in self._parameters.values() if weight.grad is not None)
        return super()._limit_gradient()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def held(tensors: Iterable[torch.Tensor]) -> int:
    """Returns the bytes of the tensors' storages, each once."""
    found = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(found.values())


def of_network(network: torch.nn.Module) -> int:
    return held([*network.parameters(), *network.buffers()])


def variant(name: str) -> dict[str, Any]:
    return {key: value for key, value in (SMALL | VARIANTS[name]).items() if value is not None}


def needs_of(settings: dict[str, Any], ranks: int = 1, dtype: str | None = None) -> Needs:
    return ShapeDrawing(RunFacts(seed=5, settings=settings, iterations=3)).needs(ranks, dtype)


def started(folder: Path, settings: dict[str, Any]) -> Watched:
    with mock.patch("yatt_core.workloads.diffusion.drawing.pretrain"):
        found = begun(Watched, folder, 5, 3, **settings)
    assert isinstance(found, Watched)
    return found


@pytest.mark.parametrize("name", ["flux", "adapters", "nft", *in_verify("sd3", "qwen_image", "dpo", "unet")])
def test_a_rank_holds_what_is_stated(name: str, tmp_path: Path) -> None:
    """Weights, gradients, moments and the state to the byte; what is held for a while to a tenth."""
    settings = variant(name)
    near = (
        0.3 if name == "unet" else 0.1
    )  # the library copies what a convolution sees, which is much beside a pass of so few
    needs = needs_of(settings)
    rank = needs.rank
    workload = started(tmp_path / "inputs", settings)
    columns: dict[str, Any] = {}
    prepare = peak_of(lambda: columns.update(workload.sample(workload.draw(DRAW), DRAW)))
    columns["reward"] = np.arange(len(columns["reward"]), dtype=np.float32)  # pairs differ
    learn = peak_of(lambda: workload.update(columns, DRAW))
    evaluate = peak_of(workload.evaluate)
    state = workload.state()
    tensors = [each for each in (*state.weights.values(), *state.others.values()) if isinstance(each, torch.Tensor)]
    network = workload._network
    assert needs.parameters == sum(weight.numel() for weight in network.parameters())
    assert needs.trained == sum(weight.numel() for weight in workload._parameters.values())
    assert rank.weights == of_network(network)
    assert rank.gradients == workload.gradients > 0
    assert rank.optimizer == held(workload._moments.values())
    assert rank.frozen == sum(of_network(other) for other in workload._networks() if other is not network)
    assert (rank.frozen == 0) == ("adapters" in settings)
    assert needs.state == sum(tensor.nbytes for tensor in tensors)
    assert rank.prepare == pytest.approx(prepare, rel=near)
    assert rank.learn + rank.gradients == pytest.approx(learn, rel=near)
    assert rank.evaluate == pytest.approx(evaluate, rel=near)
    assert needs.work["image_steps"] == 12 * 4 * 3 and needs.work["image_steps_learnt"] == LEARNT.get(name, 12 * 4 * 2)


def test_the_rows_of_many_batches_are_counted(tmp_path: Path) -> None:
    """Twelve gradients that are encoded and decoded outweigh the passes; numpy and bytes are not torch's."""
    settings = SMALL | {"group": 2, "rows": 2, "kl": 0.0}
    workload = started(tmp_path / "inputs", settings)
    workload._ranks = WorkloadRanks(Collective())
    columns = workload.sample(workload.draw(DRAW), DRAW)
    tracemalloc.start()
    try:
        of_torch = peak_of(lambda: workload.update(columns, DRAW))
        _, others = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rank = needs_of(settings).rank
    assert rank.learn + rank.gradients == pytest.approx(of_torch + others, rel=0.1)


@pytest.mark.parametrize("others", [{}, ADAPTERS], ids=["weights", "adapters"])
def test_a_sampler_holds_what_is_stated(others: dict[str, Any], tmp_path: Path) -> None:
    settings = SMALL | others
    started(tmp_path / "inputs", settings)
    sampler = ShapeDrawing(RunFacts(seed=5, settings=settings, iterations=3))
    sampler.begin_sampling(tmp_path / "inputs", "float32")
    columns = sampler.draw(DRAW)
    shard = {name: column[sampler.shards(columns)[0]] for name, column in columns.items()}
    collect = peak_of(lambda: sampler.sample_shard(shard, DRAW))
    needs = needs_of(settings, dtype="float32")
    stated = needs.sampler
    assert stated is not None
    assert stated.weights == of_network(sampler._network)
    assert stated.sent == sum(tensor.nbytes for tensor in sampler.sampling_weights().values())
    assert stated.collect == pytest.approx(collect, rel=0.1)
    assert needs.rank.prepare == 0, "the ranks do not sample"
    half = needs_of(settings | {"keep": "latents"}, dtype="bfloat16").sampler
    assert half is not None and half.weights == stated.weights // 2


def test_a_divided_network_is_divided() -> None:
    """tests/workloads/diffusion/test_sharded.py compares the parts with those of two processes."""
    found: dict[int, RankNeeds] = {}
    for ranks in (1, 2):
        workload = ShardedDrawing(RunFacts(seed=5, settings=SMALL, iterations=3))
        found[ranks] = workload.needs(ranks, None).rank
    assert found[2].weights < 0.6 * found[1].weights and found[2].optimizer < 0.6 * found[1].optimizer
    assert found[2].frozen == found[2].weights and found[2].gradients < 0.6 * found[1].gradients
    assert found[2].learn > found[2].gradients, "activations and gathered blocks are not divided"


def test_a_model_that_rewards_is_counted_from_its_config(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    settings = SMALL | {"reward": {"kind": "clip", "model": "judge"}}
    workload = ShapeDrawing(RunFacts(seed=5, settings=settings, iterations=3, models={"judge": folder}))
    of_clip = held(ClipScorer(folder)._clip._model.parameters())
    (folder / "model.safetensors").unlink()
    assert workload.needs(1, None).rank.frozen == needs_of(SMALL).rank.frozen + of_clip
