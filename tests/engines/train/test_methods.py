"""Methods on a real model: one gradient in any micro-batches and on any ranks, and updates of several steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.support import batch_of, make_engine, make_model_folder, make_spec, random_task, update
from tests.parity.test_ragged_gradients import columns_for
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.engines.train.steps.plan import plan_step
from yatt_core.models.loading import load_causal_lm
from yatt_core.spec.sections.trainer import AdamWSpec

CLIPPED: list[dict[str, Any]] = [
    {"kind": "clip"},
    {"kind": "dual_clip", "ratio_max": 1.3},
    {"kind": "gspo", "clip_low": 0.2, "clip_high": 0.2},
    {"kind": "gmpo", "clip_low": 0.1, "clip_high": 0.1},
    {"kind": "cispo", "clip_low": 0.2, "clip_high": 0.2},
    {"kind": "dppo", "delta": 0.01},
]
OBJECTIVES: dict[str, dict[str, Any]] = {
    "gspo": {"loss": {"kind": "gspo", "clip_low": 0.3, "clip_high": 0.3}, "aggregation": "sequence_mean"},
    "gmpo": {"loss": {"kind": "gmpo"}},
    "corrections": {
        "importance_correction": {"kind": "truncate", "by": "sequence", "cap": 2.0},
        "off_policy_mask": {"delta": 0.1},
    },
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_whole_responses_have_one_gradient_on_any_ranks_and_in_any_micro_batches(
    objective: str, tmp_path: Path, model_folder: Path
) -> None:
    batch = batch_of(tmp_path, random_task(tmp_path, 1, seed=2))
    columns, model = columns_for(batch), load_causal_lm(str(model_folder), "float32")
    optimizer, collective = FlatAdamW(model, AdamWSpec()), Collective()
    learner = PolicyLearner(
        make_spec(algorithm=OBJECTIVES[objective]), PolicyForward(model, 0.8, "float32"), optimizer, collective
    )

    def gradient(ranks: int, budget: int, packed: bool) -> torch.Tensor:
        plan = plan_step(batch.lengths, np.arange(len(batch)), ranks, budget, packed)
        total = torch.zeros_like(optimizer.gradients)
        for rank in range(ranks):
            collective.rank = rank
            learner.gradients(batch, columns, plan)
            total += optimizer.gradients
        return total

    whole = gradient(1, 10_000, False)
    assert float(whole.abs().max()) > 1e-3
    for ranks, budget, packed in ((1, 17, False), (2, 33, True), (4, 10_000, False)):
        torch.testing.assert_close(gradient(ranks, budget, packed), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", CLIPPED, ids=lambda loss: loss["kind"])
def test_an_update_of_four_steps_clips_and_repeats_its_bits(
    loss: dict[str, Any], tmp_path: Path, model_folder: Path
) -> None:
    algorithm = {"loss": loss, "epochs": 4}
    trainer = {"optimizer": {"learning_rate": 3e-4, "epsilon": 1e-4}}
    receipts = []
    for name in ("a", "b"):
        engine = make_engine(make_spec(algorithm=algorithm, trainer=trainer), tmp_path / name, model_folder)
        receipts.append(update(engine, random_task(tmp_path / name, 1)))
    assert receipts[0].metrics["update/empty_steps"] == 0.0
    assert receipts[0].metrics["clip_fraction"] > 0.0
    assert receipts[0].fingerprint == receipts[1].fingerprint
