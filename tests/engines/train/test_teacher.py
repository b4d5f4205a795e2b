"""On-policy distillation: parity with a plain loop, with the teacher whole or sharded; restoring; refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.letters import letters_spec
from tests.engines.train.plain import plain_grpo_step, plain_log_probs
from tests.engines.train.support import (
    VOCABULARY,
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
from tests.spec.trees import VIRTUAL, mistakes
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.prepared import read_prepared
from yatt_core.input_building.given_models import check_before_start
from yatt_core.input_building.materialise import materialise
from yatt_core.spec.run import RunSpec

COEFFICIENT = 0.3
TORCH = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a teacher that is wider and deeper than the policy, with two more rows in its embedding."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(5)
    sizes = {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = Qwen2Config(
        vocab_size=VOCABULARY + 2, num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.2, **sizes
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def taught_spec(teacher: Path, engine: dict[str, Any] = TORCH, **algorithm: Any) -> RunSpec:
    distillation = {"teachers": [{"model": {"kind": "folder", "path": str(teacher)}}], "coefficient": COEFFICIENT}
    optimizer = {"learning_rate": 1e-3, "epsilon": 1e-4, "weight_decay": 0.05}
    return make_spec(
        algorithm={"distillation": distillation, **algorithm}, trainer={"engine": engine, "optimizer": optimizer}
    )


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def plain_weights(
    folder: Path, model_folder: Path, teacher: Path
) -> tuple[dict[str, np.ndarray[Any, Any]], list[float]]:
    """Returns the weights and gradient norms of five steps of a plain loop."""
    model = loaded(model_folder)
    taught = (loaded(teacher), COEFFICIENT)
    adamw = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.05)
    norms = [
        plain_grpo_step(model, adamw, batch_of(folder, random_task(folder, iteration)), 0.8, teacher=taught)
        for iteration in range(1, 6)
    ]
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}, norms


@pytest.mark.parametrize(
    "engine",
    [
        TORCH,
        pytest.param(TORCH | {"packed": True}, marks=pytest.mark.verify),
        pytest.param(TORCH | {"ranks": 2}, marks=pytest.mark.verify),
        pytest.param(
            {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}, marks=pytest.mark.verify
        ),
    ],
    ids=["torch", "packed", "torch-2", "fsdp2-2"],
)
def test_five_updates_equal_a_plain_loop(
    engine: dict[str, Any], tmp_path: Path, model_folder: Path, teacher: Path
) -> None:
    weights, norms = plain_weights(tmp_path / "plain", model_folder, teacher)
    job = Job(taught_spec(teacher, engine), model_folder, range(1, 6), rejoin_at=3)
    found = run_ranks(engine["ranks"], [job], tmp_path)[0][0]
    assert [receipt.metrics["grad_norm"] for receipt in found.receipts] == pytest.approx(norms, rel=1e-4)
    for name, array in weights.items():
        np.testing.assert_allclose(found.weights[name], array, atol=1e-6, rtol=0, err_msg=name)


def test_the_column_holds_the_teachers_log_probabilities(tmp_path: Path, model_folder: Path, teacher: Path) -> None:
    engine = make_engine(taught_spec(teacher), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert columns.log_probs_old is None, "one step needs no pass for the old log-probabilities"
    assert columns.log_probs_teacher is not None
    found = [
        torch.cat([plain_log_probs(loaded(folder), batch, index, 0.8) for index in range(len(batch))]).detach().numpy()
        for folder in (model_folder, teacher)
    ]
    expected = np.where(batch.loss_mask, found[1], 0.0)
    # Processors sum in different orders: a few units in the last place of values of up to 10.
    np.testing.assert_allclose(columns.log_probs_teacher, expected, rtol=1e-6, atol=2e-6)
    divergence = (found[0] - found[1])[batch.loss_mask].mean()
    assert engine.learn(task, prepared).metrics["distillation_kl"] == pytest.approx(divergence, abs=1e-5)


def test_a_restored_trainer_continues_bit_for_bit(tmp_path: Path, model_folder: Path, teacher: Path) -> None:
    spec = taught_spec(teacher, mini_batches=2)
    undisturbed = make_engine(spec, tmp_path / "a", model_folder)
    update(undisturbed, random_task(tmp_path / "a", 1))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    undisturbed.freeze_state()(checkpoint)
    assert not list(checkpoint.glob("*teacher*"))
    restored = make_engine(spec, tmp_path / "b", model_folder)
    restored.restore(checkpoint, 1)
    one, other = (update(engine, random_task(tmp_path / at, 2)) for engine, at in ((undisturbed, "a"), (restored, "b")))
    assert (one.fingerprint, one.metrics) == (other.fingerprint, other.metrics)


def test_a_policy_that_is_its_own_teacher_has_nothing_to_learn(tmp_path: Path, model_folder: Path) -> None:
    taught = make_engine(taught_spec(model_folder), tmp_path / "a", model_folder)
    plain = make_engine(taught_spec(model_folder, distillation=None), tmp_path / "b", model_folder)
    one, other = (update(engine, random_task(tmp_path / at, 1)) for engine, at in ((taught, "a"), (plain, "b")))
    assert one.metrics["distillation_kl"] == pytest.approx(0.0, abs=1e-6)
    assert one.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=1e-4)


def test_a_token_unknown_to_the_teacher_is_refused(tmp_path: Path, teacher: Path) -> None:
    policy = make_model_folder(tmp_path / "policy")
    small = tmp_path / "small"
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY - 1, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(small)
    engine = make_engine(taught_spec(small), tmp_path, policy)
    rows = random_rows(1)
    rows[3]["response_tokens"][0] = VOCABULARY - 1
    with pytest.raises(DataError, match=r"^algorithm\.distillation\.teachers: .*token 23\b.*\b23 tokens"):
        engine.prepare(write_shards(tmp_path, 1, rows))


def test_a_folder_that_cannot_be_loaded_is_named_by_its_key(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none_such"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    engine = make_engine(taught_spec(tmp_path), tmp_path, model_folder)
    task = random_task(tmp_path, 1)
    with pytest.raises(ConfigurationError, match=rf"^algorithm\.distillation\.teachers\.0\.model\.path: {tmp_path}"):
        engine.prepare(task)


@pytest.mark.parametrize(
    ("changes", "ways_out"),
    [
        (VIRTUAL, ["null"]),
        ({"trainer": {"engine": {"kind": "megatron", "dtype": "float32"}}}, ["null", "fsdp2 or torch"]),
    ],
)
def test_trainers_that_cannot_hold_a_second_model_refuse(changes: dict[str, Any], ways_out: list[str]) -> None:
    distillation = {"teachers": [{"model": {"kind": "folder", "path": "/a"}}]}
    (line,) = mistakes(algorithm={"distillation": distillation}, **changes)
    assert line.startswith("algorithm.distillation: ") and all(way in line for way in ways_out)


def test_the_teacher_is_checked_with_the_inputs_of_a_run(tmp_path: Path) -> None:
    plain = letters_spec(tmp_path)
    first = materialise(plain, tmp_path / "first")
    teacher = shutil.copytree(first.model_path, tmp_path / "teacher")

    def spec(**algorithm: Any) -> RunSpec:
        changed = {
            "distillation": {"teachers": [{"model": {"kind": "folder", "path": str(teacher)}}]},
            **algorithm,
        }
        return RunSpec.model_validate({**plain.model_dump(mode="json"), "algorithm": changed})

    materialise(spec(), tmp_path / "run")
    materialise(spec(epochs=2), tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"\bteachers\b"):
        materialise(plain, tmp_path / "run")
    config = json.loads((teacher / "config.json").read_text())
    (teacher / "config.json").write_text(json.dumps({**config, "rope_theta": 5.0}))
    with pytest.raises(ConfigurationError, match=r"^algorithm\.distillation\.teachers\.0\.model\.path: .*\bconfig"):
        materialise(spec(), tmp_path / "run")
    (teacher / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 6}))
    with pytest.raises(ConfigurationError, match=r"teachers\.0\.model\.path: .*\b6 .*\b9 tokens"):
        materialise(spec(), tmp_path / "short")
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigurationError, match=r"tokenizer.*\b2 tokens .*'a'"):
        materialise(spec(), tmp_path / "other")
    policy = {"kind": "folder", "path": first.model_path}
    given = RunSpec.model_validate({**spec().model_dump(mode="json"), "model": policy})
    with pytest.raises(ConfigurationError, match=r"teachers\.0\.model\.path: .*tokenizer"):
        check_before_start(given)
    shutil.rmtree(teacher)
    with pytest.raises(ConfigurationError, match=rf"^algorithm\.distillation\.teachers\.0\.model\.path: .*{teacher}"):
        check_before_start(given)
