"""PPO with a critic: parity with a plain loop, whole or in shards; SFT; checkpoints; failures; refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.groups import Found, Job, run_ranks
from tests.engines.train.plain_ppo import CLIP, DECAY, DISCOUNT, EPSILON, VALUE_CLIP, Arrays, PlainPpo
from tests.engines.train.support import (
    ONLY_FILE,
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    prepare,
    random_task,
    saved_tensors,
    update,
    weights_of,
)
from tests.spec.trees import VIRTUAL, mistakes, spec, tells
from yatt_core.checkpoints.contents import CRITIC, CRITIC_OPTIMIZER
from yatt_core.digests import weights_digest
from yatt_core.errors import ConfigurationError, DataError, NumericError
from yatt_core.experience.prepared import read_prepared
from yatt_core.spec.run import RunSpec

RATE = 1e-3
CRITIC_RATE = 2e-3
TORCH = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}
FSDP2 = {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}


def ppo_spec(
    engine: dict[str, Any] = TORCH,
    critic: dict[str, Any] | None = None,
    gae: dict[str, Any] | None = None,
    **algorithm: Any,
) -> RunSpec:
    optimizer = {"epsilon": 1e-4, "weight_decay": 0.05}
    own = {"optimizer": {**optimizer, "learning_rate": CRITIC_RATE}, "clip": VALUE_CLIP, **(critic or {})}
    return make_spec(
        algorithm={
            "advantage": {"kind": "gae", "gamma": DISCOUNT, "gae_lambda": DECAY, **(gae or {})},
            "epochs": 2,
            "loss": {"clip_low": CLIP, "clip_high": CLIP},
            "epsilon": EPSILON,
            "critic": own,
            **algorithm,
        },
        trainer={"engine": engine, "optimizer": {**optimizer, "learning_rate": RATE}},
    )


def critic_of(checkpoint: Path) -> Arrays:
    return saved_tensors(checkpoint, CRITIC)


def assert_close(found: Arrays, wanted: Arrays) -> None:
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6, rtol=0, err_msg=name)


LAYOUTS = [
    pytest.param(TORCH, id="torch"),
    pytest.param(TORCH | {"packed": True}, id="packed", marks=pytest.mark.verify),
    pytest.param(TORCH | {"ranks": 2}, id="torch-2", marks=pytest.mark.verify),
    pytest.param(FSDP2, id="fsdp2-2", marks=pytest.mark.verify),
    pytest.param(FSDP2 | {"cpu_offload": True}, id="fsdp2-2-offload", marks=pytest.mark.verify),
]


@pytest.mark.parametrize("engine", LAYOUTS)
def test_five_updates_equal_a_plain_loop_and_a_checkpoint_can_be_resumed(
    engine: dict[str, Any], tmp_path: Path, model_folder: Path
) -> None:
    """Ranks connect again half-way; the torch trainer on one rank resumes from the checkpoint too."""
    plain = PlainPpo(model_folder, RATE, CRITIC_RATE, 0.8)
    batches = [batch_of(tmp_path / "plain", random_task(tmp_path / "plain", iteration)) for iteration in range(1, 6)]
    losses = [plain.update(batch, epochs=2)[1] for batch in batches]
    jobs = [
        Job(ppo_spec(engine), model_folder, range(1, 6), save=tmp_path / "five", save_at=5, rejoin_at=3),
        Job(ppo_spec(engine), model_folder, range(1, 4), save=tmp_path / "three", save_at=3),
        Job(ppo_spec(engine), model_folder, (4, 5), restore=(tmp_path / "three", 3)),
    ]
    undisturbed, _, restored = run_ranks(engine["ranks"], jobs, tmp_path)[0]
    policy, critic = plain.weights()
    assert_close(undisturbed.weights, policy)
    assert_close(critic_of(tmp_path / "five"), critic)
    norms = [receipt.metrics["grad_norm"] for receipt in undisturbed.receipts]
    assert norms == pytest.approx([np.mean(found) for found in losses], rel=1e-4)
    assert any(receipt.metrics["value_clip_fraction"] > 0.0 for receipt in undisturbed.receipts)
    assert _results(restored) == _results(undisturbed)[3:]
    other = make_engine(ppo_spec(), tmp_path / "other", model_folder)
    other.restore(tmp_path / "three", 3)
    for iteration in (4, 5):
        update(other, random_task(tmp_path / "other", iteration))
    assert_close(weights_of(other), policy)


def _results(found: Found) -> list[tuple[Any, Any]]:
    return [(receipt.fingerprint, receipt.metrics) for receipt in found.receipts]


def test_prepared_values_are_the_critics(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(ppo_spec(gae={"normalise": "none", "gae_lambda": 1.0, "gamma": 1.0}), tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    task = random_task(tmp_path, 2)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert columns.values is not None and columns.returns is not None and columns.token_advantages is not None
    counted = batch.loss_mask
    owners = np.repeat(np.arange(len(batch)), batch.response_lengths)
    np.testing.assert_allclose(columns.returns[counted], batch.rewards[owners][counted], atol=1e-6)
    np.testing.assert_allclose(columns.token_advantages, columns.returns - columns.values, atol=1e-6)
    assert not columns.values[~counted].any() and np.unique(columns.values[counted]).size > 10
    spread = 1.0 - np.var(columns.returns[counted] - columns.values[counted]) / np.var(columns.returns[counted])
    assert prepared.metrics["explained_variance"] == pytest.approx(spread, abs=1e-5)
    first = columns.token_advantages[: batch.response_lengths[0]][counted[: batch.response_lengths[0]]]
    assert columns.advantages[0] == pytest.approx(first.mean(), abs=1e-6)


def test_kl_in_the_reward_is_subtracted_token_by_token(tmp_path: Path, model_folder: Path) -> None:
    kl = {"where": "reward", "coefficient": 0.5}
    spec = ppo_spec(gae={"normalise": "none", "gae_lambda": 1.0, "gamma": 1.0}, kl=kl)
    engine = make_engine(spec, tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    task = random_task(tmp_path, 2)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert columns.returns is not None and columns.log_probs_old is not None and columns.log_probs_ref is not None
    pulls = 0.5 * (columns.log_probs_old - columns.log_probs_ref)
    for index in range(len(batch)):
        own = slice(*batch.response_offsets[index : index + 2])
        mask = batch.loss_mask[own]
        still = np.cumsum(pulls[own][mask][::-1])[::-1]
        np.testing.assert_allclose(columns.returns[own][mask], batch.rewards[index] - still, atol=1e-5)
    assert np.abs(pulls).max() > 1e-4


def test_in_its_warm_up_the_critic_learns_alone(tmp_path: Path, model_folder: Path) -> None:
    spec = ppo_spec(critic={"warmup_iterations": 2, "clip": None}, epochs=4)
    engine = make_engine(spec, tmp_path, model_folder)
    before = weights_digest(weights_of(engine))
    receipts = [update(engine, random_task(tmp_path, iteration, seed=4)) for iteration in (1, 2, 3)]
    digests = [receipt.fingerprint["weights_digest"] for receipt in receipts]
    assert digests[:2] == [before, before] and digests[2] != before
    assert len({receipt.fingerprint["critic_digest"] for receipt in receipts}) == 3
    assert engine.version == 3
    assert sorted(receipts[0].metrics) == ["tokens", "value_clip_fraction", "value_grad_norm", "value_loss"]
    assert "policy_loss" in receipts[2].metrics


def test_a_critic_may_start_from_its_own_folder(tmp_path: Path, model_folder: Path) -> None:
    other = make_model_folder(tmp_path / "other", seed=9)
    digests = set()
    for folder in (model_folder, other):
        critic = {"model": {"kind": "folder", "path": str(folder)}}
        engine = make_engine(ppo_spec(critic=critic), tmp_path / folder.name, model_folder)
        digests.add(update(engine, random_task(tmp_path / folder.name, 1)).fingerprint["critic_digest"])
    engine = make_engine(ppo_spec(), tmp_path / "plain", model_folder)
    digests.add(update(engine, random_task(tmp_path / "plain", 1)).fingerprint["critic_digest"])
    assert len(digests) == 2, "without its own folder a critic starts from the policy's"
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigurationError, match=r"^algorithm\.critic\.model\.path: .*config\.json"):
        missing = {"model": {"kind": "folder", "path": str(tmp_path / "none")}}
        make_engine(ppo_spec(critic=missing), tmp_path / "x", model_folder)


def test_nothing_is_applied_when_either_is_not_finite(tmp_path: Path, model_folder: Path) -> None:
    """The gradients of policy and critic are both complete before either takes its step."""
    for poisoned in ("policy", "critic"):
        engine = make_engine(ppo_spec(), tmp_path / poisoned, model_folder)
        task = random_task(tmp_path / poisoned, 1)
        prepared = prepare(engine, task)
        critic = engine.policy.critic
        assert critic is not None
        optimizer = engine.policy.optimizer if poisoned == "policy" else critic.optimizer
        optimizer.named(optimizer.values.detach())["model.layers.1.mlp.up_proj.weight"].fill_(torch.inf)
        before = engine.policy.cheap_digests()
        with pytest.raises(NumericError, match=r"(loss|norm|loss is) (nan|inf)\b"):
            engine.learn(task, prepared)
        assert (engine.policy.cheap_digests(), engine.version) == (before, 0)


def test_a_checkpoint_without_its_critic_or_with_another_is_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(ppo_spec(), tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    engine.freeze_state()(tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["critic_steps"] == 2
    assert "lm_head.weight" not in weights_of(engine)
    assert critic_of(tmp_path)["lm_head.weight"].shape == (1, 32)
    engine.restore(tmp_path, 1)
    (tmp_path / CRITIC / ONLY_FILE).write_bytes((tmp_path / "weights" / ONLY_FILE).read_bytes())
    with pytest.raises(DataError, match=r"lm_head\.weight"):
        engine.restore(tmp_path, 1)
    shutil.rmtree(tmp_path / CRITIC)
    with pytest.raises(DataError, match="/critic: is missing"):
        engine.restore(tmp_path, 1)
    assert (tmp_path / CRITIC_OPTIMIZER).exists() and engine.version == -1


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (VIRTUAL, ("virtual", "gae")),
        (
            {"trainer": {"engine": {"kind": "megatron", "dtype": "float32"}}},
            ("Megatron-Core", "gae", "fsdp2", "torch"),
        ),
    ],
)
def test_trainers_that_cannot_hold_a_second_model_refuse(changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    (line,) = mistakes(algorithm={"advantage": {"kind": "gae"}, "critic": {}}, **changes)
    assert tells(line, "algorithm.critic: ", *facts)


def test_a_critic_needs_only_one_sample_per_prompt() -> None:
    assert (
        spec(algorithm={"advantage": {"kind": "gae"}, "critic": {}}, rollout__samples_per_prompt=1).critic is not None
    )
