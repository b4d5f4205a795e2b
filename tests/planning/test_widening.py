"""Operands that are widened to float32 are part of a plan on cores, and enough for what torch really allocates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.memory import peak_of
from tests.matrix import in_verify
from tests.planning.examples import SHORT, cluster, spec_7b
from tests.planning.test_activations import COUNTED, ROWS, TOKENS, micro_batch
from yatt_core.bfloat16.products import NATIVE, WIDENED, Products
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.planning.account import JUDGE, LEARN, PREPARE, Bytes
from yatt_core.planning.cluster import DescribedCluster, local_cluster, read_cards
from yatt_core.planning.memory.activations import MicroBatchShape, torch_training
from yatt_core.planning.memory.demand import Demand, demand_of
from yatt_core.planning.memory.widening import widened_kernels, widened_pass
from yatt_core.planning.roles import roles_of
from yatt_core.planning.shape import ModelShape, shape_of
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.spec.sections.trainer import AdamWSpec

SMALL = "model={kind: sizes, hidden_size: 512, layers: 4, heads: 8, key_value_heads: 8, intermediate_size: 1024}"
CORES = local_cluster(read_cards()).model_copy(update={"devices_per_node": 2})
ENGINES = ("rollout.engine={kind: torch, instances: 1}", "trainer.engine={kind: %s, dtype: %s, %s}")


def passes_of(network: nn.Module, dense: bool, products: Products) -> Any:
    if dense:
        optimizer = FlatAdamW(network, AdamWSpec(), neighbours_of(network))
        return DensePasses(network, optimizer, 0.7, "bfloat16", products)
    FlatAdamW(network, AdamWSpec())
    return PolicyForward(network, 0.7, "bfloat16", products=products)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("vocabulary", [4096, *in_verify(32)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_widened_pass_of_the_trainer_allocates_no_more_than_the_plan_adds(
    tmp_path: Path, dense: bool, vocabulary: int, tied: bool
) -> None:
    model = ModelFromConfig(
        architecture="qwen2", hidden_size=128, layers=3, heads=4, key_value_heads=2, intermediate_size=384,
        tie_embeddings=tied,
    )  # fmt: skip
    make_model(model, vocabulary, 0, tmp_path)
    batch = micro_batch(vocabulary)
    learned = {}
    scored = {}
    for products in (NATIVE, WIDENED):
        passes = passes_of(load_causal_lm(str(tmp_path), "float32"), dense, products)

        def step(passes: Any = passes) -> None:
            passes.backward([batch], lambda _part, log_probs, _entropies: log_probs.sum(), "metric")

        step()
        learned[products.way] = peak_of(step)
        scored[products.way] = peak_of(lambda passes=passes: passes.score([batch]))
    shape = shape_of(spec_7b().model_copy(update={"model": model}), vocabulary)
    sizes = MicroBatchShape(ROWS, ROWS * TOKENS, ROWS * COUNTED)
    more = widened_pass(shape, sizes, learning=True)
    scoring = widened_pass(shape, sizes, learning=False)
    if dense:
        more = max(more, widened_kernels(shape, learning=True))
        scoring = max(scoring, widened_kernels(shape, learning=False))
    assert 0 < learned["widened"] - learned["native"] <= 1.01 * more
    assert 0 < scored["widened"] - scored["native"] <= 1.01 * scoring
    counted = torch_training(shape, sizes, "bfloat16", entropy_gradient=False) + more
    assert learned["widened"] <= 1.1 * counted
    assert dense or counted <= 1.5 * learned["widened"], "modules are what the plan counts"


def found(devices: DescribedCluster, kind: str, dtype: str, more: str, *changes: str) -> Demand:
    rollout, trainer = ENGINES
    spec = spec_7b(rollout, trainer % (kind, dtype, more), "exact=false", SMALL, *changes)
    return demand_of(roles_of(spec, SHORT), devices, SHORT)


def held(demand: Demand, stage: str, role: str = "trainer") -> Bytes:
    return next(row for row in demand.roles if row.role == role).at(stage)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("torch", "ranks: 1"),
        ("torch", "ranks: 1, kernels: general"),
        ("fsdp2", "ranks: 1"),
        ("megatron", "data_parallel_size: 1"),
    ],
)
def test_a_trainer_in_bfloat16_on_cores_counts_the_operands_of_its_passes(
    kind: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = found(CORES, kind, "bfloat16", more)
    in_float32 = found(CORES, kind, "float32", more)
    monkeypatch.setattr("yatt_core.planning.memory.demand.with_widened_passes", lambda memory, *_: memory)
    without = found(CORES, kind, "bfloat16", more)
    assert found(CORES, kind, "float32", more).roles == in_float32.roles
    for stage in (PREPARE, LEARN):
        assert held(counted, stage).copies > held(without, stage).copies
        assert held(counted, stage).activations == held(without, stage).activations
    assert held(counted, LEARN, "rollout") == held(without, LEARN, "rollout")


def test_a_trainer_on_gpus_widens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    card = found(cluster("1xH200"), "fsdp2", "bfloat16", "ranks: 1")
    monkeypatch.setattr("yatt_core.planning.memory.demand.with_widened_passes", lambda memory, *_: memory)
    assert found(cluster("1xH200"), "fsdp2", "bfloat16", "ranks: 1").roles == card.roles


@pytest.mark.parametrize(("dtype", "widened"), [("float32", 0), ("bfloat16", 1)])
def test_a_reward_model_on_cores_counts_the_operands_of_its_largest_product(
    dtype: str, widened: int, tmp_path: Path
) -> None:
    sizes = {
        "model_type": "qwen2", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    folder = {"kind": "folder", "path": str(tmp_path)}
    part = {
        "kind": "reward_model",
        "name": "judge",
        "model": folder,
        "dtype": dtype,
        "batch_tokens": 512,
        "max_tokens": 8,
    }
    parts = [{"name": "exact", "function": "exact_match"}, part]
    demand = found(CORES, "torch", "float32", "ranks: 1", f"rewards.parts={json.dumps(parts)}")
    assert held(demand, JUDGE, "judge").copies == widened * 4 * (64 * 256 + 512 * (64 + 256))
    assert held(demand, JUDGE, "judge").weights > 0


def test_ranks_that_divide_matrices_divide_their_copies() -> None:
    shape = ModelShape(1000, 64, 2, 4, 2, 16, 256, tied=True)
    batch = MicroBatchShape(rows=4, tokens=512, counted=256)
    for learning in (True, False):
        whole = widened_pass(shape, batch, learning=learning)
        assert whole / 2 <= widened_pass(shape, batch, learning=learning, tensor=2) < whole
    assert widened_pass(shape, batch, learning=True) > widened_pass(shape, batch, learning=False)
