"""`--set`: one key at a time, with YAML values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.spec.trees import refusal, tells, tree, write
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec
from yatt_core.spec.reading.layers import Override


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "spec.yaml", tree(rollout__engine={"kind": "torch", "instances": 2}))


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("seed=7", lambda s: s.seed, 7),
        (" seed =7", lambda s: s.seed, 7),
        ("rollout.temperature=0.25", lambda s: s.rollout.temperature, 0.25),
        ("trainer.optimizer.learning_rate=3e-4", lambda s: s.trainer.optimizer.learning_rate, 3e-4),
        ("trainer.optimizer.betas=[0.8, 0.9]", lambda s: s.trainer.optimizer.betas, (0.8, 0.9)),
        ("trainer.schedule.kind=cosine", lambda s: s.trainer.schedule.kind, "cosine"),
        ("exact=false", lambda s: s.exact, False),
        ("name=other", lambda s: s.name, "other"),
        ("name='2024'", lambda s: s.name, "2024"),
        ("data.sources.0.size=5", lambda s: s.data.sources[0].size, 5),
        ("data.sources.0.options={a: [1, x]}", lambda s: s.data.sources[0].options, {"a": [1, "x"]}),
        ("data.sources.0.options.a.b=1e-3", lambda s: s.data.sources[0].options, {"a": {"b": 1e-3}}),
        ('data.system_prompt="Answer: briefly"', lambda s: s.data.system_prompt, "Answer: briefly"),
        ("data.system_prompt=a=b", lambda s: s.data.system_prompt, "a=b"),
        ("data.system_prompt=null", lambda s: s.data.system_prompt, None),
        ("data.system_prompt=", lambda s: s.data.system_prompt, None),
        ("sft.max_steps=9", lambda s: s.sft.max_steps, 9),
        ("sft={}", lambda s: s.sft.max_steps, 400),
        ("rewards.parts.0.options.case_sensitive=true", lambda s: s.rewards.parts[0].options, {"case_sensitive": True}),
        ("rollout.engine={kind: torch, instances: 1}", lambda s: s.rollout.engine.instances, 1),
        ("rollout.engine.instances=3", lambda s: s.rollout.engine.instances, 3),
        ("algorithm={kl: {coefficient: 0.5}}", lambda s: s.algorithm.kl.coefficient, 0.5),
    ],
)
def test_sets_a_value(path, override, read, value):
    made = read(load_spec(path, [override]))
    assert made == value
    assert type(made) is type(value)


def test_a_whole_mapping_replaces_and_the_last_one_wins(path):
    made = load_spec(path, ["data.sources.0.options={a: 1, b: 2}", "data.sources.0.options={c: 3}", "seed=1", "seed=2"])
    assert made.data.sources[0].options == {"c": 3}
    assert made.seed == 2


def test_a_set_builds_on_the_previous_one(path):
    made = load_spec(path, ["algorithm.epochs=2", "algorithm.kl.coefficient=0.5", "algorithm.kl.where=reward"])
    assert (made.algorithm.kl.coefficient, made.algorithm.kl.where) == (0.5, "reward")


def test_paths_are_relative_to_the_working_folder(path, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    made = load_spec(
        path, ["model={kind: folder, path: m}", "data.sources.0={kind: jsonl}", "data.sources.0.path=../d.jsonl"]
    )
    assert made.model.path == str(here / "m")
    assert made.data.sources[0].path == str(tmp_path / "d.jsonl")
    made = load_spec(path, ["rewards.parts.0.options.path=x", "data.sources.0.options={path: y}"])
    assert made.rewards.parts[0].options == {"path": "x"}
    assert made.data.sources[0].options == {"path": "y"}


@pytest.mark.parametrize(
    "override", ["seed", "=1", "", " =1", "rollout..temperature=1", ".seed=1", "seed.=1", "--seed"]
)
def test_wrong_syntax(path, override):
    (line,) = refusal(path, override)
    assert tells(line, f"--set {override}: ", "key=value", "--set seed=1", "--set rollout.temperature=0.7")


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("name.deep=1", ("name ", "value")),
        ("data.sources.0.task.deep.er=1", ("data.sources.0.task ", "value")),
        ("data.sources.1.task=x", ("'1' ", "length 1", "0")),
        ("data.sources.1=x", ("'1' ", "length 1", "0")),
        ("data.sources.-1.task=x", ("'-1' ", "length 1", "0")),
        ("data.sources.first.task=x", ("'first' ", "length 1", "0")),
        ("data.sources.².task=x", ("'²' ", "length 1", "0")),
        ("rollout.engine=[{kind: torch", ("", "YAML", "'}'", "'<stream end>'")),
        ("data.system_prompt=@you", ("", "YAML", "'@'")),
        (
            "rollout.engine={kind: torch, kind: virtual}",
            ("", "YAML", "'kind'", "line 1"),
        ),
    ],
)
def test_what_cannot_be_set(path, override, facts):
    (line,) = refusal(path, override)
    assert tells(line.removeprefix(f"--set {override}: "), *facts)


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("sed=1", ("sed: ", "'seed'")),
        ("data.sources.0.tsk=1", ("data.sources.0.tsk: ", "'task'")),
        ("data.system_prompt=Answer: briefly", ("data.system_prompt: ", "a mapping")),
        ("data.0=1", ("data.0: ", "unknown key", "sources")),
        ("extends=other.yaml", ("extends: ", "unknown key", "rewards")),
        ("rollout.engine.kind=sglang", ("rollout.engine.kind: ", "'sglang'", "torch, virtual, vllm")),
    ],
)
def test_a_wrong_key_or_value_names_the_override(path, override, facts):
    (line,) = refusal(path, override)
    assert tells(line, f"--set {override}: {facts[0]}", *facts)


def test_the_kernels_of_an_engine(path):
    torch = ["rollout.engine={kind: torch}", "rollout.engine.kernels=auto"]
    made = load_spec(path, ["trainer.engine={kind: torch, kernels: general}", *torch])
    assert (made.trainer.engine.kernels, made.rollout.engine.kernels) == ("general", "auto")
    with pytest.raises(ConfigurationError, match=r"'auto' or 'general' \(given: 'generl'\)"):
        load_spec(path, ["trainer.engine={kind: torch, kernels: generl}", *torch])


def test_the_original_tree_is_not_modified():
    below = {"a": [{"b": 1}], "c": None}
    assert Override.parse("a.0.b=2").apply(below) == {"a": [{"b": 2}], "c": None}
    assert Override.parse("c.d.e=2").apply(below) == {"a": [{"b": 1}], "c": {"d": {"e": 2}}}
    assert below == {"a": [{"b": 1}], "c": None}


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet="ab.=0[]{}: '\"!-\n", max_size=16))
def test_any_text_sets_something_or_is_refused_by_name(text):
    try:
        override = Override.parse(text)
        override.apply({"a": {"b": [1, {"a": 2}]}, "b": None})
    except ConfigurationError as error:
        assert str(error).startswith(f"--set {text}")
