"""The trainer on one rank: parity with a plain Hugging Face loop, idempotence, resumption, failures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from tests.engines.train.plain import plain_grpo_step, plain_log_probs
from tests.engines.train.support import (
    MAX_NEW_TOKENS,
    ONLY_FILE,
    batch_of,
    make_engine,
    make_spec,
    prepare,
    random_rows,
    random_task,
    saved_tensors,
    update,
    weights_of,
    write_shards,
)
from yatt_core.digests import weights_digest
from yatt_core.errors import DataError, InfrastructureError, NumericError
from yatt_core.experience.prepared import read_prepared
from yatt_core.progress import seconds_since_progress


def test_five_updates_equal_a_plain_loop(tmp_path: Path, model_folder: Path) -> None:
    schedule = {"kind": "linear", "lr_warmup_iterations": 2}
    optimizer = {"learning_rate": 1e-2, "epsilon": 1e-4, "weight_decay": 0.05}
    engine_spec = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}
    spec = make_spec(trainer={"engine": engine_spec, "schedule": schedule, "optimizer": optimizer})
    engine = make_engine(spec, tmp_path, model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    plain = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.05)
    rates = [0.005, 0.01, 0.01, 0.00875, 0.0075]
    for iteration in range(1, 6):
        task = random_task(tmp_path, iteration)
        receipt = update(engine, task)
        plain.param_groups[0]["lr"] = rates[iteration - 1]
        norm = plain_grpo_step(model, plain, batch_of(tmp_path, task), 0.8)
        assert receipt.metrics["learning_rate"] == pytest.approx(rates[iteration - 1])
        assert receipt.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    ours = weights_of(engine)
    assert "lm_head.weight" not in ours
    for name, parameter in model.named_parameters():
        # A few units in the last place of float32: how a processor's kernels sum decides about the last bits.
        np.testing.assert_allclose(ours[name], parameter.detach().numpy(), atol=2e-6, rtol=0)
    assert weights_digest(ours) == receipt.fingerprint["weights_digest"]


def test_two_identical_runs_have_identical_bits(tmp_path: Path, model_folder: Path) -> None:
    fingerprints = []
    for run in ("a", "b"):
        engine = make_engine(make_spec(), tmp_path / run, model_folder)
        receipts = [update(engine, random_task(tmp_path / run, iteration)) for iteration in (1, 2)]
        fingerprints.append([(receipt.fingerprint, receipt.metrics) for receipt in receipts])
    assert fingerprints[0] == fingerprints[1]
    assert fingerprints[0][0] != fingerprints[0][1]


def test_learn_applies_once_and_refuses_other_versions(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    first = random_task(tmp_path, 1)
    second = random_task(tmp_path, 2)
    prepared = prepare(engine, first)
    receipt = engine.learn(first, prepared)
    digest = weights_digest(weights_of(engine))
    assert engine.learn(first, prepared) is receipt
    assert weights_digest(weights_of(engine)) == digest
    assert engine.version == 1
    with pytest.raises(InfrastructureError, match=r"version 1\b.*\b0$"):
        engine.prepare(first)
    with pytest.raises(InfrastructureError, match=r"version 1\b.*\b2$"):
        engine.learn(random_task(tmp_path, 3), prepared)
    assert update(engine, second).version == 2


def test_a_skipped_update_changes_only_the_version(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    first = random_task(tmp_path, 1)
    second = random_task(tmp_path, 2)
    before = weights_digest(weights_of(engine))
    skipped = engine.skip(first)
    assert engine.skip(first) is skipped
    assert (engine.version, weights_digest(weights_of(engine))) == (1, before)
    assert skipped.fingerprint["weights_digest"] == before
    with pytest.raises(InfrastructureError, match=r"version 1\b.*\b0$"):
        engine.prepare(first)
    other = make_engine(make_spec(), tmp_path / "other", model_folder)
    same_rows = write_shards(tmp_path / "other", 1, random_rows(2))
    assert update(engine, second).fingerprint == update(other, same_rows).fingerprint, (
        "as if the first had never happened"
    )


def test_prepared_columns_of_other_samples_are_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    prepared = prepare(engine, task)
    with pytest.raises(DataError, match=f"^{prepared.folder}: "):
        engine.learn(replace(task, shards=random_task(tmp_path, 2).shards), prepared)
    assert engine.version == 0


@pytest.mark.parametrize("kl", [None, {"where": "loss"}])
def test_a_restored_trainer_continues_bit_for_bit(
    tmp_path: Path, model_folder: Path, kl: dict[str, str] | None
) -> None:
    spec = make_spec(algorithm={"kl": kl, "mini_batches": 2})
    undisturbed = make_engine(spec, tmp_path / "a", model_folder)
    receipts = [update(undisturbed, random_task(tmp_path / "a", iteration)) for iteration in (1, 2)]
    empty = sum(receipt.metrics["update/empty_steps"] for receipt in receipts)
    assert empty == (1 if kl is None else 0), "one mini-batch has groups of equal rewards only"
    write = undisturbed.freeze_state()
    expected = [update(undisturbed, random_task(tmp_path / "a", iteration)) for iteration in (3, 4)]
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    write(checkpoint)
    assert (checkpoint / "reference").exists() == (kl is not None)
    assert json.loads((checkpoint / "state.json").read_text())["optimizer_steps"] == 4 - empty
    restored = make_engine(spec, tmp_path / "b", model_folder)
    update(restored, random_task(tmp_path / "b", 1, seed=9))
    restored.restore(checkpoint, 2)
    assert restored.version == 2
    found = [update(restored, random_task(tmp_path / "b", iteration)) for iteration in (3, 4)]
    assert [receipt.fingerprint for receipt in found] == [receipt.fingerprint for receipt in expected]
    assert [receipt.metrics for receipt in found] == [receipt.metrics for receipt in expected]


def test_checkpoint_files_load_as_hugging_face_weights(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    engine.freeze_state()(tmp_path)
    model = AutoModelForCausalLM.from_config(Qwen2Config.from_pretrained(model_folder))
    report = model.load_state_dict(
        {name: torch.from_numpy(array) for name, array in _file(tmp_path / "weights" / ONLY_FILE).items()},
        strict=False,
    )
    assert report.unexpected_keys == []
    assert report.missing_keys == ["lm_head.weight"]
    np.testing.assert_array_equal(
        model.lm_head.weight.detach().numpy(), weights_of(engine)["model.embed_tokens.weight"]
    )


def _file(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = safetensors.numpy.load_file(path)
    return arrays


def test_restore_refuses_another_version_and_another_model(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    engine.freeze_state()(tmp_path)
    with pytest.raises(DataError, match=r"version 0\b.*\b4$"):
        engine.restore(tmp_path, 4)
    weights = _file(tmp_path / "weights" / ONLY_FILE)
    weights["model.norm.weight"] = np.ones(3, np.float32)
    safetensors.numpy.save_file(weights, tmp_path / "weights" / ONLY_FILE)
    with pytest.raises(DataError, match=r"model\.norm\.weight"):
        engine.restore(tmp_path, 0)


def test_nothing_is_applied_when_a_gradient_is_not_finite(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    prepared = prepare(engine, task)
    engine.policy.optimizer.named(engine.policy.optimizer.values.detach())["model.layers.1.mlp.up_proj.weight"].fill_(
        torch.inf
    )
    before = weights_digest(weights_of(engine))
    with pytest.raises(NumericError, match=r"loss \S+, gradient norm \S+:"):
        engine.learn(task, prepared)
    assert weights_digest(weights_of(engine)) == before
    assert engine.version == 0


def test_advantages_that_are_not_finite_are_never_written(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(algorithm={"kl": {"where": "reward"}}), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    engine.policy.optimizer.values.detach().fill_(torch.nan)
    with pytest.raises(NumericError, match=r"advantage nan .*prompt ordinal 0"):
        engine.prepare(task)
    assert not list(tmp_path.rglob("rank-*.parquet"))


def test_several_steps_learn_against_the_same_old_log_probs(tmp_path: Path, model_folder: Path) -> None:
    spec = make_spec(
        algorithm={"epochs": 2, "mini_batches": 3, "importance_correction": {"kind": "truncate", "cap": 2.0}}
    )
    engine = make_engine(spec, tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    batch = batch_of(tmp_path, task)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64).eval()
    old = torch.cat([plain_log_probs(model, batch, index, 0.8) for index in range(len(batch))]).detach().numpy()
    assert columns.log_probs_old is not None
    # A plain model in float32 differs from one in float64 by as much: a few units in the last place of logits of up to 10.
    np.testing.assert_allclose(columns.log_probs_old, np.where(batch.loss_mask, old, 0.0), rtol=2e-6, atol=4e-6)
    metrics = engine.learn(task, prepared).metrics
    assert metrics["ratio_max"] > 1.05
    assert metrics["ratio_min"] < 0.95
    assert metrics["clip_fraction"] > 0.0
    assert 0.0 < metrics["importance_weight"] <= 2.0
    gaps = np.abs(old - batch.log_probs_sampler)[batch.loss_mask]
    assert metrics["train_rollout_logprob_diff_mean"] == pytest.approx(gaps.mean(), rel=1e-5)
    assert metrics["train_rollout_logprob_diff_max"] == pytest.approx(gaps.max(), rel=1e-5)
    assert metrics["tokens"] == 2 * np.count_nonzero(batch.loss_mask)
    assert _file_count(tmp_path, engine) == 6 - metrics["update/empty_steps"] > 4
    assert (seconds_since_progress() or 0.0) > 0.0, "micro-batches are marked as progress"


def _file_count(folder: Path, engine: Any) -> int:
    engine.freeze_state()(folder)
    return int(json.loads((folder / "state.json").read_text())["optimizer_steps"])


def test_one_step_has_ratio_one_and_needs_no_extra_pass(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert columns.log_probs_old is None
    assert columns.log_probs_ref is None
    metrics = engine.learn(task, prepared).metrics
    assert (metrics["ratio_max"], metrics["ratio_min"], metrics["clip_fraction"]) == (1.0, 1.0, 0.0)
    assert 0.0 < metrics["entropy"] < np.log(24)


def test_kl_in_the_loss_pulls_towards_the_weights_of_iteration_zero(tmp_path: Path, model_folder: Path) -> None:
    distances = {}
    for coefficient in (None, 0.001, 10.0):
        kl = None if coefficient is None else {"where": "loss", "coefficient": coefficient}
        engine = make_engine(make_spec(algorithm={"kl": kl}), tmp_path / str(coefficient), model_folder)
        start = weights_of(engine)
        receipts = [update(engine, random_task(tmp_path / str(coefficient), iteration)) for iteration in range(1, 5)]
        if coefficient is not None:
            assert receipts[0].metrics["kl"] == pytest.approx(0.0, abs=1e-9)
            assert receipts[-1].metrics["kl"] > 0.0
            distances[coefficient] = receipts[-1].metrics["kl"]
        assert any(not np.array_equal(start[name], array) for name, array in weights_of(engine).items())
    assert distances[10.0] < distances[0.001]


def test_kl_in_the_reward_is_subtracted_before_normalising(tmp_path: Path, model_folder: Path) -> None:
    kl = {"where": "reward", "coefficient": 0.5}
    engine = make_engine(make_spec(algorithm={"kl": kl}), tmp_path, model_folder)
    reference = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    first = prepare(engine, random_task(tmp_path, 1))
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert "kl" not in engine.learn(random_task(tmp_path, 1), first).metrics
    engine.freeze_state()(tmp_path)
    policy = AutoModelForCausalLM.from_config(Qwen2Config.from_pretrained(model_folder)).eval()
    weights = saved_tensors(tmp_path)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    task = random_task(tmp_path, 2)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    penalties = []
    for index in range(len(batch)):
        mask = batch.loss_mask[batch.response_offsets[index] : batch.response_offsets[index + 1]]
        with torch.no_grad():
            difference = plain_log_probs(policy, batch, index, 0.8) - plain_log_probs(reference, batch, index, 0.8)
        penalties.append(float(difference.numpy()[mask].sum()))
    rewards = (batch.rewards - 0.5 * np.array(penalties)).reshape(-1, 4)
    expected = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    np.testing.assert_allclose(columns.advantages, expected.reshape(-1), atol=1e-4)
    assert prepared.metrics["kl"] == pytest.approx(sum(penalties) / np.count_nonzero(batch.loss_mask), abs=1e-5)


def test_permuted_advantages_are_the_same_numbers_elsewhere(tmp_path: Path, model_folder: Path) -> None:
    values = []
    for permute in (False, True):
        engine = make_engine(make_spec(algorithm={"permute_advantages": permute}), tmp_path, model_folder)
        prepared = prepare(engine, random_task(tmp_path, 1))
        values.append(read_prepared(tmp_path, prepared.folder, prepared.files).advantages)
    np.testing.assert_array_equal(np.sort(values[0]), np.sort(values[1]))
    assert not np.array_equal(values[0], values[1])


def test_entropy_bonus_changes_the_update(tmp_path: Path, model_folder: Path) -> None:
    losses = {}
    for bonus in (0.0, 0.1):
        engine = make_engine(
            make_spec(algorithm={"entropy": {"kind": "bonus", "coefficient": bonus} if bonus else None}),
            tmp_path / str(bonus),
            model_folder,
        )
        losses[bonus] = update(engine, random_task(tmp_path / str(bonus), 1)).metrics
    assert losses[0.1]["policy_loss"] == losses[0.0]["policy_loss"]
    assert losses[0.1]["loss"] == pytest.approx(losses[0.0]["loss"] - 0.1 * losses[0.0]["entropy"], abs=1e-6)
    assert losses[0.1]["grad_norm"] != losses[0.0]["grad_norm"]


def test_bfloat16_keeps_weights_in_float32(tmp_path: Path, model_folder: Path) -> None:
    gaps = {}
    for dtype in ("float32", "bfloat16"):
        spec = make_spec(exact=False, trainer={"engine": {"kind": "torch", "ranks": 1, "dtype": dtype}})
        engine = make_engine(spec, tmp_path / dtype, model_folder)
        gaps[dtype] = update(engine, random_task(tmp_path / dtype, 1)).metrics["train_rollout_logprob_diff_mean"]
        assert {array.dtype for array in weights_of(engine).values()} == {np.dtype(np.float32)}
    assert gaps["bfloat16"] == pytest.approx(gaps["float32"], rel=0.05)
    assert gaps["bfloat16"] != gaps["float32"]


def test_packed_samples_give_the_same_update_up_to_rounding(tmp_path: Path, model_folder: Path) -> None:
    task = random_task(tmp_path, 1)
    algorithm = {"mini_batches": 2, "kl": {"coefficient": 0.05}}
    found = []
    for packed in (False, True):
        engine = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 40, "packed": packed}
        spec = make_spec(algorithm=algorithm, trainer={"engine": engine})
        found.append(update(make_engine(spec, tmp_path, model_folder), task))
    padded, packed_one = found
    assert padded.fingerprint["plan"] != packed_one.fingerprint["plan"]
    for name in ("loss", "grad_norm", "entropy", "kl", "train_rollout_logprob_diff_mean"):
        assert packed_one.metrics[name] == pytest.approx(padded.metrics[name], rel=1e-4, abs=1e-6), name


def test_max_new_tokens_is_the_fixed_length(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(make_spec(algorithm={"aggregation": "fixed_length"}), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    expected = -np.repeat(columns.advantages, batch.response_lengths)[batch.loss_mask].sum() / (24 * MAX_NEW_TOKENS)
    assert engine.learn(task, prepared).metrics["policy_loss"] == pytest.approx(expected, abs=1e-6)
