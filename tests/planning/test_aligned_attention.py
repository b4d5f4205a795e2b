"""The attention of aligned engines is part of a plan, and enough for what torch really allocates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.memory import peak_of
from tests.engines.rollout.cases import prompts_of, request_of
from tests.planning.examples import SHORT, spec_7b
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.model.forward import MicroBatch
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.planning.account import COLLECT, LEARN, PREPARE
from yatt_core.planning.cluster import local_cluster, read_cards
from yatt_core.planning.memory.activations import MicroBatchShape, torch_forward, torch_training
from yatt_core.planning.memory.aligned_attention import aligned_pass
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.memory.rollout import torch_rollout
from yatt_core.planning.roles import roles_of
from yatt_core.planning.shape import shape_of
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.spec.sections.trainer import AdamWSpec

VOCABULARY = 64
MODEL = ModelFromConfig(
    architecture="qwen2", hidden_size=32, layers=2, heads=8, key_value_heads=2, intermediate_size=48,
    max_positions=1024,
)  # fmt: skip
SHAPE = shape_of(spec_7b().model_copy(update={"model": MODEL}), VOCABULARY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    make_model(MODEL, VOCABULARY, 0, made)
    return made


def micro_batch(rows: int, prompt: int, response: int) -> MicroBatch:
    """Returns samples of one length, with prompts that differ."""
    length = prompt + response
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (rows, length)))
    places = (torch.arange(rows)[:, None] * length + torch.arange(prompt, length)[None]).reshape(-1)
    sizes = np.full(rows, length)
    return MicroBatch(
        tokens,
        places,
        tokens.reshape(-1)[places],
        np.arange(len(places)),
        np.repeat(np.arange(rows), response),
        np.arange(rows) * length,
        sizes - response,
        sizes,
    )


@pytest.mark.parametrize(("rows", "prompt", "response"), [(1, 32, 500), (2, 400, 40), (8, 40, 24)])
def test_a_pass_of_the_aligned_trainer(folder: Path, rows: int, prompt: int, response: int) -> None:
    network = load_causal_lm(str(folder), "float32")
    optimizer = FlatAdamW(network, AdamWSpec(), neighbours_of(network))
    passes = DensePasses(network, optimizer, 0.7, "float32", aligned=True)
    batch = micro_batch(rows, prompt, response)

    def step() -> None:
        passes.backward([batch], lambda _part, log_probs, _entropies: log_probs.sum(), "metric")

    step()
    sizes = MicroBatchShape(rows, rows * (prompt + response - 1), rows * response)
    others = torch_training(SHAPE, sizes, "float32", entropy_gradient=False)
    counted = others + aligned_pass(SHAPE, sizes, "float32", learning=True)
    learned = peak_of(step)
    assert learned <= 1.1 * counted <= 1.6 * learned
    others = torch_forward(SHAPE, sizes, "float32")
    counted = others + aligned_pass(SHAPE, sizes, "float32", learning=False)
    assert counted == pytest.approx(peak_of(lambda: passes.score([batch])), rel=0.15)


def test_a_prefill_of_the_aligned_sampler(folder: Path) -> None:
    engine = TorchRolloutEngine(str(folder), "float32", 512, 8, folder, folder_version=0, aligned=True)
    request = request_of(prompts_of([500, 480]), 1, max_new_tokens=2, temperature=0.7)
    section = TorchRollout(kind="torch", instances=1)
    found = {
        aligned: torch_rollout(
            section, SHAPE, batch_samples=2, samples=1, prompt=500, response=2, copies=0, aligned=aligned
        )
        for aligned in (True, False)
    }
    counted = found[True].awake.total - found[True].awake.weights
    assert counted == pytest.approx(peak_of(lambda: engine.generate(request)), rel=0.25)
    assert found[False].awake.activations < 0.5 * found[True].awake.activations


def test_an_aligned_run_counts_its_attention() -> None:
    cores = local_cluster(read_cards()).model_copy(update={"devices_per_node": 2})
    small = "model={kind: sizes, hidden_size: 512, layers: 4, heads: 8, key_value_heads: 8, intermediate_size: 1024}"
    engines = ("rollout.engine={kind: torch, instances: 1}", "trainer.engine={kind: torch, ranks: 1}")
    found = []
    for exact in ("aligned", "true"):
        spec = spec_7b(*engines, small, f"exact={exact}")
        rows = demand_of(roles_of(spec, SHORT), cores, SHORT).roles
        found.append({row.role: row for row in rows})
    aligned, others = found
    for role, stage in (("trainer", PREPARE), ("trainer", LEARN), ("rollout", COLLECT)):
        assert aligned[role].at(stage).activations > others[role].at(stage).activations
