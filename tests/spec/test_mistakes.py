"""Each mistake in a spec is reported on one line: the file, the key as written there, and what is expected."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.spec.trees import VIRTUAL, mistakes, tells, tree
from yatt_core.errors import ConfigurationError, ExitCode
from yatt_core.spec import RunSpec, parse_spec

JSONL = {"kind": "jsonl", "path": "/prompts.jsonl"}
CALCULATOR = {"name": "calculator", "function": "calculator"}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"iteration": 3}, ("iteration: ", "'iterations'")),
        (
            {"data__prompts_per_iterations": 3},
            ("data.prompts_per_iterations: ", "'prompts_per_iteration'"),
        ),
        ({"model": {"kind": "from_config", "layer": 3}}, ("model.layer: ", "'layers'")),
        (
            {"model": {"kind": "from_config", "tokenizer": {"lower_case": True}}},
            ("model.tokenizer.lower_case: ", "'lowercase'"),
        ),
        (
            {"rollout__engine": {"kind": "torch", "dtypo": "x"}},
            ("rollout.engine.dtypo: ", "'dtype'"),
        ),
        (
            {"rollout__engine": {"kind": "torch", "torch": 1}},
            ("rollout.engine.torch: ", "dtype, instances, kernels, kind, max_num_seqs"),
        ),
        ({"trainer__optimizer": {"beta": [0, 0]}}, ("trainer.optimizer.beta: ", "'betas'")),
        (
            {"trainer__schedule": {"constant": 1}},
            ("trainer.schedule.constant: ", "kind, lr_warmup_iterations, min_lr_ratio"),
        ),
        ({"algorithm": {"epoch": 1}}, ("algorithm.epoch: ", "'epochs'")),
        (
            {"algorithm": {"kl": {"coeficient": 1}}},
            ("algorithm.kl.coeficient: ", "'coefficient'"),
        ),
        ({"data__sources__0__tusk": "x"}, ("data.sources.0.tusk: ", "'task'")),
        (
            {"data__sources": [JSONL, {**JSONL, "weigth": 2}]},
            ("data.sources.1.weigth: ", "'weight'"),
        ),
        ({"rewards__parts__0__functions": "x"}, ("rewards.parts.0.functions: ", "'function'")),
        ({"recovery__budgets": {"numerics": 1}}, ("recovery.budgets.numerics: ", "'numeric'")),
        ({"controllers__zzz": 1}, ("controllers.zzz: ", "bytes_in_flight, count, per")),
    ],
)
def test_an_unknown_key_at_any_depth(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts, "unknown key")


def test_a_key_of_another_kind_is_unknown_to_this_one():
    (line,) = mistakes(**{**VIRTUAL, "rollout": {"engine": {"kind": "virtual", "dtype": "float32"}}})
    assert tells(line, "rollout.engine.dtype: unknown key", "base_seconds", "instances")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (
            {"rollout__engine": {"kind": "hf"}},
            ("rollout.engine.kind: ", "'hf'", "torch, virtual, vllm"),
        ),
        ({"rollout__engine": {"kind": "troch"}}, ("rollout.engine.kind: ", "'troch'", "'torch'")),
        (
            {"model": {"kind": "remote"}},
            ("model.kind: ", "'remote'", "folder, hub, from_config, config_file, sizes"),
        ),
        (
            {"algorithm": {"advantage": {"kind": "sft"}}},
            ("algorithm.advantage.kind: ", "'sft'", "group_std, group_mean"),
        ),
        (
            {"data__sources": [JSONL, {"kind": "excel"}]},
            ("data.sources.1.kind: ", "'excel'", "reasoning_gym, jsonl, csv, parquet, huggingface"),
        ),
        (
            {"data__sources": [JSONL, {"path": "b.jsonl"}]},
            ("data.sources.1.kind: ", "reasoning_gym, jsonl, csv, parquet, huggingface"),
        ),
    ],
)
def test_an_unknown_kind_lists_the_known_ones(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (
            {"iterations": "many"},
            ("iterations: ", "'many'"),
        ),
        (
            {"iterations": 1.5},
            ("iterations: ", "1.5"),
        ),
        ({"iterations": 0}, ("iterations: ", "0")),
        ({"iterations": True}, ("iterations: ", "given: true")),
        ({"rollout__temperature": False}, ("rollout.temperature: ", "given: false")),
        ({"trainer__optimizer": {"betas": [True, 0.9]}}, ("trainer.optimizer.betas.0: ", "given: true")),
        ({"trainer__optimizer": {"max_grad_norm": True}}, ("trainer.optimizer.max_grad_norm: ", "given: true")),
        ({"iterations": None}, ("iterations: ", "nothing")),
        ({"name": 5}, ("name: ", "5")),
        ({"name": {"a": 1}}, ("name: ", "a mapping")),
        ({"trainer": {"sync_transport": "nccl"}}, ("trainer.sync_transport: Input should be 'direct' (", "'nccl'")),
        ({"exact": "maybe"}, ("exact: Input should be 'auto', true, false or 'aligned'", "'maybe'")),
        ({"data__sources": {}}, ("data.sources: ", "a mapping")),
        ({"data__sources": []}, ("data.sources: ", "1")),
        ({"data__sources": [[]]}, ("data.sources.0: ", "a list")),
        ({"data": 5}, ("data: ", "5")),
        ({"sft": True}, ("sft: ", "given: true")),
        ({"rollout__engine": "torch"}, ("rollout.engine: ", "'torch'")),
        ({"rollout__stop": "</s>"}, ("rollout.stop: ", "'</s>'")),
        ({"rollout__stop": ["a", 1]}, ("rollout.stop.1: ", "1")),
        ({"rollout__temperature": math.inf}, ("rollout.temperature: ", "inf")),
        (
            {"rewards__parts__0__options": []},
            ("rewards.parts.0.options: ", "a list"),
        ),
        (
            {"rewards__parts__0__options": {"a": [math.nan]}},
            ("rewards.parts.0.options.a.0: ", "nan"),
        ),
        (
            {"data__sources__0__options": {"a": {"b": date(2024, 1, 1)}}},
            ("data.sources.0.options.a.b: ", "datetime.date(2024, 1, 1)"),
        ),
        ({"trainer__optimizer": {"betas": [0.9]}}, ("trainer.optimizer.betas.1: ", "missing")),
        ({"trainer__optimizer": {"betas": [0, 0, 0]}}, ("trainer.optimizer.betas: ", "2")),
        (
            {"trainer__optimizer": {"betas": [0.9, 1.0]}},
            ("trainer.optimizer.betas.1: ", "1", "1.0"),
        ),
        (
            {"rewards__parts__0__timeout_seconds": 1e10},
            ("rewards.parts.0.timeout_seconds: ", "86400", "10000000000.0"),
        ),
        (
            {"rewards__parts__0__weight": -1e308},
            ("rewards.parts.0.weight: ", "1000000000", "-1e+308"),
        ),
        (
            {"rollout__tools": {"functions": [{**CALCULATOR, "timeout_seconds": 1e7}]}},
            ("rollout.tools.functions.0.timeout_seconds: ", "86400", "10000000.0"),
        ),
        (
            {"rollout__tools": {"functions": [{**CALCULATOR, "memory_mb": 10**13}]}},
            ("rollout.tools.functions.0.memory_mb: ", "100000000", "10000000000000"),
        ),
        (
            {"trainer__schedule": {"kind": "step"}},
            ("trainer.schedule.kind: ", "'constant'", "'linear'", "'cosine'", "'step'"),
        ),
    ],
)
def test_a_wrong_type_or_value(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts)


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a_b", "a" * 41, "a/b", "a\n"])
def test_a_name_is_safe_for_folders_and_addresses(name):
    (line,) = mistakes(name=name)
    assert tells(line, "name: ", "'^[a-z0-9][a-z0-9-]{0,39}$'")


def test_long_values_are_cut_short():
    (line,) = mistakes(iterations="9" * 500 + "x")
    assert len(line) < 200


def test_missing_keys():
    with pytest.raises(ConfigurationError) as caught:
        parse_spec({"data": {"sources": [{"kind": "jsonl"}]}}, "x.yaml")
    lines = str(caught.value).splitlines()
    keys = ("name", "data.sources.0.path", "rewards")
    assert all(tells(line, f"x.yaml: {key}: ", "missing") for line, key in zip(lines, keys, strict=True))
    assert caught.value.exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("nothing", [None, [], "text", 5])
def test_a_spec_must_be_a_mapping(nothing):
    with pytest.raises(ConfigurationError, match=r"^x: .*mapping.*given: "):
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
    "csv.",
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


@settings(max_examples=examples(150), deadline=None)
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


def test_contradictions_are_reported_beside_mistakes_in_other_keys():
    lines = mistakes(
        iteration=3,
        data__prompts_per_iteration=4,
        algorithm={"mini_batches": 8},
        rollout={"temperature": -1, "batch_samples": 4},
        rewards__accuracy_part="nope",
        model={"kind": "from_config", "hidden_size": 130, "layer": 3},
    )
    expected = [
        ("iteration: ", "'iterations'"),
        ("algorithm.mini_batches: ", "8", "4"),
        ("rollout.temperature: ", "-1"),
        ("rollout: batch_samples", "4", "8"),
        ("rewards.accuracy_part: ", "'nope'"),
        ("model.layer: ", "'layers'"),
        ("model: hidden_size", "130"),
    ]
    assert len(lines) == len(expected)
    for facts in expected:
        assert any(tells(line, *facts) for line in lines), facts


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": {"max_new_token": 8}, "model": {"kind": "from_config", "max_positions": 64}},
        {"rollout": {"max_new_tokens": "few"}, "model": {"kind": "from_config", "max_positions": 64}},
        {"rollout__engine": {"kind": "virtul"}, "trainer__engine": {"kind": "virtual"}},
        {"data__prompts_per_iterations": 8, "algorithm": {"mini_batches": 100}},
    ],
)
def test_what_contradicts_only_the_default_of_a_wrong_key_is_not_reported(changes):
    assert len(mistakes(**changes)) == 1


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rollout__top_k": 0}, ("rollout.top_k: ", "0")),
        ({"rollout__top_k": 2.5}, ("rollout.top_k: ", "2.5")),
        ({"rollout__min_p": 1.1}, ("rollout.min_p: ", "1", "1.1")),
        ({"rollout__min_p": -0.1}, ("rollout.min_p: ", "0", "-0.1")),
        ({"rollout__repetition_penalty": 0}, ("rollout.repetition_penalty: ", "0")),
        ({"rollout__repetition_penalty": 11}, ("rollout.repetition_penalty: ", "10", "11")),
        ({"rollout__min_new_tokens": -1}, ("rollout.min_new_tokens: ", "0", "-1")),
        (
            {"rollout": {"min_new_tokens": 8, "max_new_tokens": 8}},
            ("rollout: min_new_tokens 8", "max_new_tokens 8", "7"),
        ),
    ],
)
def test_sampling_out_of_range(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts)


def test_an_error_in_a_check_is_not_taken_for_a_key_that_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "_position_mistakes", lambda spec: iter(spec.iterations.nothing))
    with pytest.raises(AttributeError, match="nothing"):
        mistakes(data__prompts_per_iterations=3)


def test_streamed_learning_has_no_lag():
    (line,) = mistakes(asynchrony={"lag": 1, "streamed": True})
    assert tells(line, "asynchrony: streamed: ", "lag 0", "given: 1")
