"""Parts that can be planned with and not trained with: valid in a spec, refused by name wherever a run would be made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.trees import mistakes, spec
from yatt_core.engines.protocol import RankContext
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.errors import ConfigurationError
from yatt_core.spec.availability import check_available, unavailable

PLANNED = {
    "rollout__engine": {"kind": "vllm", "tensor_parallel_size": 2},
    "trainer__engine": {"kind": "megatron", "tensor_model_parallel_size": 4, "data_parallel_size": 2},
    "model": {"kind": "config_file", "path": "config.json"},
    "exact": False,
}


def test_each_part_is_named_with_what_is_available(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("yatt_core.spec.availability.find_spec", lambda name: True)
    made = spec(**PLANNED)
    assert made.trainer.engine.ranks == 8
    assert unavailable(made) == [
        "rollout.engine.kind: 'vllm' is not yet available for training; available: torch, virtual",
        "model.kind: 'config_file' describes a model without weights; available for training: folder, from_config",
    ]
    with pytest.raises(ConfigurationError, match="`yatt plan` takes this spec as it is"):
        check_available(made)


def test_what_can_be_trained_with_is_available():
    check_available(spec())
    check_available(spec(rollout__engine={"kind": "virtual"}, trainer__engine={"kind": "virtual"}))


def test_no_engine_is_built(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="'vllm' is not yet available"):
        build_rollout_engine(spec(**PLANNED), "", tmp_path)


def test_trainers_that_share_a_model_need_their_number_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_available(spec(trainer__engine={"kind": "fsdp2", "ranks": 2}, exact=False))
    number = "0 leaves the number to the plan; available for training: 1 or more"
    assert unavailable(spec(trainer__engine={"kind": "fsdp2"}, exact=False)) == [f"trainer.engine.ranks: {number}"]
    monkeypatch.setattr("yatt_core.spec.availability.find_spec", lambda name: None)
    made = spec(trainer__engine={"kind": "megatron", "optimizer_cpu_offload": True}, exact=False)
    assert unavailable(made) == [
        "trainer.engine.kind: 'megatron' needs the package megatron-core, which is not installed; "
        "available with: pip install 'yatt[megatron]'",
        "trainer.engine.optimizer_cpu_offload: true can only be planned with; available for training: false",
        f"trainer.engine.data_parallel_size: {number}",
    ]
    with pytest.raises(ConfigurationError, match=r"pip install 'yatt\[megatron\]'"):
        build_train_engine(made, RankContext(tmp_path, tmp_path, "", 0))


def test_they_are_not_exact_in_bfloat16():
    (line,) = mistakes(**{**PLANNED, "exact": True})
    assert line.startswith("exact: set it to false, because rollout.engine.dtype is bfloat16")
    assert spec(
        **{**PLANNED, "exact": True, "rollout__engine__dtype": "float32", "trainer__engine__dtype": "float32"}
    ).exact


def test_sizes_that_cannot_be():
    sizes = {"kind": "sizes", "hidden_size": 100, "heads": 3, "key_value_heads": 3}
    assert mistakes(model=sizes) == ["model: hidden_size 100 is no multiple of heads 3; give head_size"]
    assert spec(model={**sizes, "head_size": 32}).model.head_size == 32
    assert mistakes(model={"kind": "sizes", "heads": 28, "key_value_heads": 3}) == [
        "model: heads 28 is no multiple of key_value_heads 3"
    ]
    (line,) = mistakes(model={"kind": "sizes", "max_positions": 200})
    assert "leaves no room for a prompt in model.max_positions 200" in line


def test_a_judge_that_can_only_be_planned_with_is_named():
    judge = {
        "kind": "generative", "name": "judge", "template": "{response}", "engine": {"kind": "vllm"},
        "model": {"kind": "sizes", "hidden_size": 5120, "layers": 64, "heads": 40, "key_value_heads": 8},
    }  # fmt: skip
    parts = [{"name": "exact", "function": "exact_match", "weight": 0}, judge]
    assert unavailable(spec(rewards__parts=parts, exact=False)) == [
        "rewards.parts.1.engine.kind: 'vllm' is not yet available for judging; available: torch, virtual",
        "rewards.parts.1.model.kind: 'sizes' describes a model without weights; available: folder, trained",
    ]
