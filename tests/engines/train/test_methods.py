"""Methods on a real model: one gradient in any micro-batches and on any ranks, and updates of several steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.support import (
    MAX_NEW_TOKENS,
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    prepare,
    random_rows,
    random_task,
    update,
    write_shards,
)
from tests.parity.test_ragged_gradients import columns_for
from yatt_core.engines.train.model.forward import PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.engines.train.steps.plan import plan_step
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import read_prepared
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
    columns = columns_for(batch)
    model = load_causal_lm(str(model_folder), "float32")
    optimizer = FlatAdamW(model, AdamWSpec())
    collective = Collective()
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


def test_a_reference_that_follows_is_the_policy_after_each_interval(tmp_path: Path, model_folder: Path) -> None:
    kl = {"coefficient": 0.1, "reference_interval": 2}
    engine = make_engine(make_spec(algorithm={"kl": kl}), tmp_path, model_folder)
    found = [update(engine, random_task(tmp_path, k)).metrics["kl"] for k in (1, 2)]
    (tmp_path / "checkpoint").mkdir()
    engine.freeze_state()(tmp_path / "checkpoint")
    found += [update(engine, random_task(tmp_path, k)).metrics["kl"] for k in (3, 4)]
    assert found[0] == found[2] == 0.0 and min(found[1], found[3]) > 0.0
    engine.restore(tmp_path / "checkpoint", 2)
    again = [update(engine, random_task(tmp_path, k)).metrics["kl"] for k in (3, 4)]
    assert again == found[2:], "a checkpoint holds the reference of its iteration"


def test_adaptive_coefficients_scale_the_terms_of_the_loss(tmp_path: Path, model_folder: Path) -> None:
    adaptive = {"kl": {"coefficient": 1.0, "adaptive": {"target": 0.1}}, "entropy": {"kind": "adaptive", "start": 1.0}}
    engine = make_engine(make_spec(algorithm={**adaptive, "epochs": 2}), tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    task = replace(random_task(tmp_path, 2), coefficients={"kl": 0.25, "entropy": 0.5, "entropy_bonus": 0.125})
    prepared = prepare(engine, task)
    assert (prepared.metrics["kl_coefficient"], prepared.metrics["entropy_coefficient"]) == (0.25, 0.125)
    metrics = engine.learn(task, prepared).metrics
    terms = 0.25 * metrics["kl"] - 0.125 * metrics["entropy"]
    assert metrics["loss"] - metrics["policy_loss"] == pytest.approx(terms, rel=1e-3)


def test_tokens_get_advantages_without_a_critic(tmp_path: Path, model_folder: Path) -> None:
    """REINFORCE++ with the KL penalty in the reward: each token bears the penalties that follow it."""
    kl = {"coefficient": 0.5, "where": "reward", "estimator": "k2"}
    spec = make_spec(algorithm={"advantage": {"kind": "reinforce_plus_plus"}, "kl": kl})
    engine = make_engine(spec, tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    task = random_task(tmp_path, 2)
    batch = batch_of(tmp_path, task)
    receipt = prepare(engine, task)
    columns = read_prepared(tmp_path, receipt.folder, receipt.files)
    assert columns.log_probs_ref is not None and columns.token_advantages is not None
    tokens = []
    log_probs = scored(engine, batch)
    for i in range(len(batch)):
        span = slice(batch.response_offsets[i], batch.response_offsets[i + 1])
        penalties = (
            0.5 * (log_probs[span] - columns.log_probs_ref[span].astype(np.float64)) ** 2 / 2 * batch.loss_mask[span]
        )
        tokens.append((batch.rewards[i] - penalties[::-1].cumsum()[::-1])[batch.loss_mask[span]])
    wanted = np.concatenate(tokens)
    wanted = (wanted - wanted.mean()) / (wanted.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(columns.token_advantages[batch.loss_mask], wanted, atol=2e-5)
    assert len(np.unique(np.round(columns.token_advantages[batch.loss_mask], 4))) > 2
    assert update(engine, task).metrics["grad_norm"] > 0.0


def scored(engine: Any, batch: ExperienceBatch) -> np.ndarray:
    """The log-probabilities of the response tokens under the engine's weights."""
    micro_batch = assemble(batch, np.arange(len(batch)))
    values = np.zeros(len(batch.response_tokens))
    values[micro_batch.positions] = engine.policy.forward.score([micro_batch])[0]
    return values


def test_long_and_truncated_responses(tmp_path: Path, model_folder: Path) -> None:
    rows = random_rows(1)
    for row in rows:
        row["truncated"] = len(row["response_tokens"]) == MAX_NEW_TOKENS
    shaping = {"length_penalty": {"kind": "overlong", "buffer": 4, "penalty": 2.0}, "mask_truncated": True}
    algorithm = {**shaping, "advantage": {"kind": "group_mean"}}
    engine = make_engine(make_spec(algorithm=algorithm), tmp_path, model_folder)
    task = write_shards(tmp_path, 1, rows)
    batch = batch_of(tmp_path, task)
    receipt = prepare(engine, task)
    columns = read_prepared(tmp_path, receipt.folder, receipt.files)
    counted = np.add.reduceat(batch.loss_mask, batch.response_offsets[:-1]) * (batch.response_lengths > 0)
    penalties = 2.0 * np.clip((counted - (MAX_NEW_TOKENS - 4)) / 4, 0, 1)
    rewards = (batch.rewards - penalties).reshape(6, 4)
    np.testing.assert_allclose(columns.advantages, (rewards - rewards.mean(1, keepdims=True)).ravel(), atol=1e-12)
    assert receipt.metrics["length/penalty_mean"] == pytest.approx(penalties.mean()) and penalties.any()
    kept = batch.loss_mask[~np.repeat(batch.truncated, batch.response_lengths)].sum()
    assert engine.learn(task, receipt).metrics["tokens"] == kept < batch.loss_mask.sum()
    assert receipt.reward_moments.mean == pytest.approx(rewards.mean())


def test_frozen_tokens_do_not_depend_on_micro_batches(tmp_path: Path, model_folder: Path) -> None:
    method = {"kind": "clip_cov", "fraction": 0.05, "low": 0.01, "high": 50.0}
    found = []
    for budget in (17, 10_000):
        trainer = {"engine": {"kind": "torch", "ranks": 1, "micro_batch_tokens": budget}}
        folder = tmp_path / str(budget)
        engine = make_engine(make_spec(algorithm={"entropy": method}, trainer=trainer), folder, model_folder)
        found.append(update(engine, random_task(folder, 1)).metrics)
    plain = make_engine(make_spec(), tmp_path, model_folder)
    unfrozen = update(plain, random_task(tmp_path, 1)).metrics
    assert found[0]["frozen_fraction"] == found[1]["frozen_fraction"] > 0.0
    assert found[0]["grad_norm"] == pytest.approx(found[1]["grad_norm"], rel=1e-4)
    assert found[0]["loss"] == pytest.approx(unfrozen["loss"], abs=1e-5)
    assert abs(found[0]["grad_norm"] / unfrozen["grad_norm"] - 1) > 1e-3
