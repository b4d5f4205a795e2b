"""What is wrong in a spec is said in one line each: file, key as it is written there, and what would be right."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.trees import VIRTUAL, mistakes, tree
from yatt_core.errors import ConfigurationError, ExitCode
from yatt_core.spec import RunSpec, parse_spec

JSONL = {"kind": "jsonl", "path": "/prompts.jsonl"}
CALCULATOR = {"name": "calculator", "function": "calculator"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"iteration": 3}, "iteration: unknown key; did you mean 'iterations'?"),
        (
            {"data__prompts_per_iterations": 3},
            "data.prompts_per_iterations: unknown key; did you mean 'prompts_per_iteration'?",
        ),
        ({"model": {"kind": "from_config", "layer": 3}}, "model.layer: unknown key; did you mean 'layers'?"),
        (
            {"model": {"kind": "from_config", "tokenizer": {"lower_case": True}}},
            "model.tokenizer.lower_case: unknown key; did you mean 'lowercase'?",
        ),
        (
            {"rollout__engine": {"kind": "torch", "dtypo": "x"}},
            "rollout.engine.dtypo: unknown key; did you mean 'dtype'?",
        ),
        (
            {"rollout__engine": {"kind": "torch", "torch": 1}},
            "rollout.engine.torch: unknown key; known keys: dtype, instances, kernels, kind, max_num_seqs",
        ),
        ({"trainer__optimizer": {"beta": [0, 0]}}, "trainer.optimizer.beta: unknown key; did you mean 'betas'?"),
        (
            {"trainer__schedule": {"constant": 1}},
            "trainer.schedule.constant: unknown key; known keys: kind, lr_warmup_iterations, min_lr_ratio",
        ),
        ({"algorithm": {"kind": "grpo", "epoch": 1}}, "algorithm.epoch: unknown key; did you mean 'epochs'?"),
        (
            {"algorithm": {"kind": "grpo", "kl": {"coeficient": 1}}},
            "algorithm.kl.coeficient: unknown key; did you mean 'coefficient'?",
        ),
        ({"data__sources__0__tusk": "x"}, "data.sources.0.tusk: unknown key; did you mean 'task'?"),
        (
            {"data__sources": [JSONL, {**JSONL, "weigth": 2}]},
            "data.sources.1.weigth: unknown key; did you mean 'weight'?",
        ),
        ({"rewards__parts__0__functions": "x"}, "rewards.parts.0.functions: unknown key; did you mean 'function'?"),
        ({"recovery__budgets": {"numerics": 1}}, "recovery.budgets.numerics: unknown key; did you mean 'numeric'?"),
        ({"controllers__zzz": 1}, "controllers.zzz: unknown key; known keys: bytes_in_flight, count, per"),
    ],
)
def test_an_unknown_key_at_any_depth(changes, line):
    assert mistakes(**changes) == [line]


def test_a_key_of_another_kind_is_unknown_to_this_one():
    (line,) = mistakes(**{**VIRTUAL, "rollout": {"engine": {"kind": "virtual", "dtype": "float32"}}})
    assert line.startswith("rollout.engine.dtype: unknown key; known keys: base_seconds, ")
    assert "instances" in line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"rollout__engine": {"kind": "hf"}},
            "rollout.engine.kind: unknown kind 'hf'; known kinds: torch, virtual, vllm",
        ),
        ({"rollout__engine": {"kind": "troch"}}, "rollout.engine.kind: unknown kind 'troch'; did you mean 'torch'?"),
        (
            {"model": {"kind": "hub"}},
            "model.kind: unknown kind 'hub'; known kinds: folder, from_config, config_file, sizes",
        ),
        ({"algorithm": {"kind": "sft"}}, "algorithm.kind: unknown kind 'sft'; known kinds: grpo, ppo"),
        (
            {"data__sources": [JSONL, {"kind": "csv"}]},
            "data.sources.1.kind: unknown kind 'csv'; known kinds: reasoning_gym, jsonl, parquet, huggingface",
        ),
        (
            {"trainer__engine": {"ranks": 1}},
            "trainer.engine.kind: required, and missing; known kinds: torch, virtual, megatron, fsdp2",
        ),
    ],
)
def test_an_unknown_kind_says_which_there_are(changes, line):
    assert mistakes(**changes) == [line]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"iterations": "many"},
            "iterations: Input should be a valid integer, unable to parse string as an integer (given: 'many')",
        ),
        (
            {"iterations": 1.5},
            "iterations: Input should be a valid integer, got a number with a fractional part (given: 1.5)",
        ),
        ({"iterations": 0}, "iterations: Input should be greater than 0 (given: 0)"),
        ({"iterations": None}, "iterations: Input should be a valid integer (given: nothing)"),
        ({"name": 5}, "name: Input should be a valid string (given: 5)"),
        ({"name": {"a": 1}}, "name: Input should be a valid string (given: a mapping)"),
        ({"exact": "maybe"}, "exact: Input should be a valid boolean, unable to interpret input (given: 'maybe')"),
        ({"data__sources": {}}, "data.sources: a list is needed (given: a mapping)"),
        ({"data__sources": []}, "data.sources: at least 1 item is needed"),
        ({"data__sources": [[]]}, "data.sources.0: a mapping of keys to values is needed (given: a list)"),
        ({"data": 5}, "data: a mapping of keys to values is needed (given: 5)"),
        ({"sft": True}, "sft: a mapping of keys to values is needed (given: True)"),
        ({"rollout__engine": "torch"}, "rollout.engine: a mapping of keys to values is needed (given: 'torch')"),
        ({"rollout__stop": "</s>"}, "rollout.stop: a list is needed (given: '</s>')"),
        ({"rollout__stop": ["a", 1]}, "rollout.stop.1: Input should be a valid string (given: 1)"),
        ({"rollout__temperature": math.inf}, "rollout.temperature: Input should be a finite number (given: inf)"),
        (
            {"rewards__parts__0__options": []},
            "rewards.parts.0.options: a mapping of keys to values is needed (given: a list)",
        ),
        (
            {"rewards__parts__0__options": {"a": [math.nan]}},
            "rewards.parts.0.options.a.0: Input should be a finite number (given: nan)",
        ),
        (
            {"data__sources__0__options": {"a": {"b": date(2024, 1, 1)}}},
            "data.sources.0.options.a.b: input was not a valid JSON value (given: datetime.date(2024, 1, 1))",
        ),
        ({"trainer__optimizer": {"betas": [0.9]}}, "trainer.optimizer.betas.1: required, and missing"),
        ({"trainer__optimizer": {"betas": [0, 0, 0]}}, "trainer.optimizer.betas: at most 2 items are taken"),
        (
            {"trainer__optimizer": {"betas": [0.9, 1.0]}},
            "trainer.optimizer.betas.1: Input should be less than 1 (given: 1.0)",
        ),
        (
            {"rewards__parts__0__timeout_seconds": 1e10},
            "rewards.parts.0.timeout_seconds: Input should be less than or equal to 86400 (given: 10000000000.0)",
        ),
        (
            {"rewards__parts__0__weight": -1e308},
            "rewards.parts.0.weight: Input should be greater than or equal to -1000000000 (given: -1e+308)",
        ),
        (
            {"rollout__tools": {"functions": [{**CALCULATOR, "timeout_seconds": 1e7}]}},
            "rollout.tools.functions.0.timeout_seconds: Input should be less than or equal to 86400 (given: 10000000.0)",
        ),
        (
            {"rollout__tools": {"functions": [{**CALCULATOR, "memory_mb": 10**13}]}},
            "rollout.tools.functions.0.memory_mb: Input should be less than or equal to 100000000 (given: 10000000000000)",
        ),
        (
            {"trainer__schedule": {"kind": "step"}},
            "trainer.schedule.kind: Input should be 'constant', 'linear' or 'cosine' (given: 'step')",
        ),
    ],
)
def test_a_wrong_type_or_value(changes, line):
    assert mistakes(**changes) == [line]


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a_b", "a" * 41, "a/b", "a\n"])
def test_a_name_is_fit_for_folders_and_addresses(name):
    (line,) = mistakes(name=name)
    assert line.startswith("name: String should match pattern '^[a-z0-9][a-z0-9-]{0,39}$'")


def test_long_values_are_cut_short():
    (line,) = mistakes(iterations="9" * 500 + "x")
    assert len(line) < 200


def test_missing_keys():
    with pytest.raises(ConfigurationError) as caught:
        parse_spec({"data": {"sources": [{"kind": "jsonl"}]}}, "x.yaml")
    lines = str(caught.value).splitlines()
    assert lines == [
        "x.yaml: name: required, and missing",
        "x.yaml: data.sources.0.path: required, and missing",
        "x.yaml: rewards: required, and missing",
    ]
    assert caught.value.exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("nothing", [None, [], "text", 5])
def test_what_is_no_mapping_is_no_spec(nothing):
    with pytest.raises(ConfigurationError, match=r"^x: a mapping of keys to values is needed"):
        parse_spec(nothing, "x")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2000)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["torch", "jsonl", "grpo"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["kind", "path", "options", "dtype", "x", "0"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = st.sampled_from(
    [
        "name", "model", "sft", "data", "rollout", "rewards", "algorithm", "trainer", "exact", "recovery",
        "data__sources", "data__sources__0", "data__sources__0__options", "rollout__engine", "rollout__stop", "rewards__parts",
        "rewards__parts__0", "trainer__engine", "trainer__optimizer", "other",
    ]
)  # fmt: skip
TAGS = (
    "reasoning_gym.",
    "jsonl.",
    "parquet.",
    "huggingface.",
    "torch.",
    "virtual.",
    "from_config.",
    "folder.",
    "grpo.",
    "list.",
    "dict.",
)


@settings(max_examples=150, deadline=None)
@given(PLACES, JSON)
def test_anything_at_any_place_is_a_spec_or_a_readable_refusal(place, value):
    changed = tree(**{place: value})
    try:
        made = parse_spec(changed, "x.yaml")
    except ConfigurationError as error:
        lines = str(error).splitlines()
        assert lines
        for line in lines:
            assert line.startswith("x.yaml: ")
            key = line.removeprefix("x.yaml: ").partition(": ")[0]
            assert not any(tag in f"{key}." for tag in TAGS), line
    else:
        assert RunSpec.model_validate_json(made.model_dump_json()).digest == made.digest
