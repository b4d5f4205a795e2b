"""Loading files into a spec: strict YAML, `extends`, paths, and the origin of each mistake."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.spec.trees import refusal, tells, tree, write
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec
from yatt_core.spec.reading.documents import parse_yaml
from yatt_core.spec.reading.layers import lay_over


def test_in_a_chain_of_files_the_later_one_wins(tmp_path):
    write(tmp_path / "a.yaml", tree(seed=1, iterations=1, rollout={"temperature": 0.5, "max_new_tokens": 5}))
    write(tmp_path / "b.yaml", {"extends": "a.yaml", "iterations": 2, "rollout": {"temperature": 0.7}})
    made = load_spec(write(tmp_path / "c.yaml", {"extends": "b.yaml", "name": "last"}))
    assert (made.name, made.seed, made.iterations) == ("last", 1, 2)
    assert (made.rollout.temperature, made.rollout.max_new_tokens) == (0.7, 5)


def test_a_list_of_files_and_folders(tmp_path):
    write(tmp_path / "base" / "whole.yaml", tree(seed=1, iterations=1))
    write(tmp_path / "base" / "more.yaml", {"seed": 2, "rollout": {"max_new_tokens": 9}})
    path = write(tmp_path / "top.yaml", {"extends": ["base/whole.yaml", "base/more.yaml"], "iterations": 3})
    made = load_spec(path)
    assert (made.seed, made.iterations, made.rollout.max_new_tokens) == (2, 3, 9)
    assert (
        made.digest
        == load_spec(write(tmp_path / "flat.yaml", tree(seed=2, iterations=3, rollout__max_new_tokens=9))).digest
    )


def test_two_files_may_share_a_base(tmp_path):
    write(tmp_path / "base.yaml", tree(seed=1))
    write(tmp_path / "left.yaml", {"extends": "base.yaml", "seed": 2})
    write(tmp_path / "right.yaml", {"extends": "base.yaml", "iterations": 7})
    made = load_spec(write(tmp_path / "top.yaml", {"extends": ["left.yaml", "right.yaml"]}))
    assert (made.seed, made.iterations) == (1, 7), "the later file wins with everything in it, including its base"


def test_another_kind_replaces_and_the_same_kind_merges(tmp_path):
    base = tree(rollout__engine={"kind": "torch", "instances": 3}, trainer__engine={"kind": "torch", "ranks": 3})
    write(tmp_path / "base.yaml", base)
    virtual = {"kind": "virtual", "clock_factor": 5.0}
    top = {"extends": "base.yaml", "rollout": {"engine": virtual}, "trainer": {"engine": virtual}}
    made = load_spec(write(tmp_path / "virtual.yaml", top))
    assert (made.rollout.engine.instances, made.trainer.engine.ranks) == (2, 2), (
        "defaults, not values of the other kind"
    )
    top = {"extends": "base.yaml", "rollout": {"engine": {"kind": "torch", "dtype": "bfloat16"}}, "exact": False}
    made = load_spec(write(tmp_path / "torch.yaml", top))
    assert (made.rollout.engine.instances, made.rollout.engine.dtype) == (3, "bfloat16")


def test_layers():
    assert lay_over({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}
    assert lay_over({"a": {"b": 1}}, {"a": None}) == {"a": None}
    assert lay_over({"a": None}, {"a": {"b": 1}}) == {"a": {"b": 1}}
    assert lay_over({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}
    assert lay_over({"x": 1}, {"kind": "k"}) == {"x": 1, "kind": "k"}
    assert lay_over({"kind": "j", "x": 1}, {"kind": "k", "y": 2}) == {"kind": "k", "y": 2}
    old = {"a": {"b": 1}}
    new = {"a": {"c": 2}}
    lay_over(old, new)
    assert (old, new) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_null_switches_a_part_off(tmp_path):
    write(tmp_path / "base.yaml", tree(sft={"max_steps": 3}, algorithm={"kl": {"coefficient": 1.0}}))
    top = {"extends": "base.yaml", "sft": None, "algorithm": {"kl": None}}
    made = load_spec(write(tmp_path / "top.yaml", top))
    assert made.sft is None
    assert made.algorithm.kl is None


def test_a_cycle(tmp_path):
    write(tmp_path / "a.yaml", {"extends": "b.yaml"})
    write(tmp_path / "b.yaml", {"extends": "./a.yaml"})
    (line,) = refusal(tmp_path / "a.yaml")
    assert line.endswith(f": {tmp_path / 'a.yaml'} -> {tmp_path / 'b.yaml'} -> {tmp_path / 'a.yaml'}")
    (line,) = refusal(write(tmp_path / "self.yaml", {"extends": ["self.yaml"]}))
    assert "extends itself" in line
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (line,) = refusal(tmp_path / "loop.yaml")
    # From Python 3.13 on, a loop is found when the file is opened.
    said = ("a link that leads to itself", "cannot be read: Too many levels of symbolic links")
    assert line.startswith(tuple(f"{tmp_path / 'loop.yaml'}: {words}" for words in said))


@pytest.mark.parametrize("given", [5, None, {"a": "b.yaml"}, ["b.yaml", 5], True])
def test_extends_of_a_wrong_type(tmp_path, given):
    path = write(tmp_path / "a.yaml", {"extends": given})
    (line,) = refusal(path)
    assert tells(line, f"{path}: extends: ", "given: ")


def test_extends_a_missing_file(tmp_path):
    path = write(tmp_path / "a.yaml", {"extends": "none.yaml"})
    (line,) = refusal(path)
    assert tells(line, f"{path}: extends: ", str(tmp_path / "none.yaml"))


def test_a_mistake_names_its_file(tmp_path):
    base = write(tmp_path / "base.yaml", tree(rollout={"temprature": 1.0}, iterations=0, seed=-1))
    more = write(tmp_path / "more.yaml", {"extends": "base.yaml", "iterations": -5})
    top = write(tmp_path / "top.yaml", {"extends": "more.yaml", "exactt": True})
    lines = refusal(top, "data.held_out=0", "trainer.engine.ranks=0", "rewards.parts.0.weight=heavy", "seed=-3")
    expected = [
        (f"{more}: iterations: ", "given: -5"),
        (f"{base}: rollout.temprature: ", "'temperature'"),
        (f"{top}: exactt: ", "'exact'"),
        ("--set data.held_out=0: data.held_out: ", "given: 0"),
        ("--set trainer.engine.ranks=0: trainer.engine.ranks: ", "given: 0"),
        ("--set rewards.parts.0.weight=heavy: rewards.parts.0.weight: ", "given: 'heavy'"),
        ("--set seed=-3: seed: ", "given: -3"),
    ]
    assert len(lines) == len(expected)
    for facts in expected:
        assert any(tells(line, *facts) for line in lines), facts


def test_unreadable_overrides_and_missing_files_are_reported_beside_the_rest(tmp_path):
    path = write(tmp_path / "a.yaml", tree(seeed=3, model={"kind": "folder", "path": "nowhere"}))
    overrides = ["seed", "rollout.max_new_tokens=[", "data.sources.7.task=x", "iterations=1.5"]
    with pytest.raises(ConfigurationError) as caught:
        load_spec(path, overrides, with_files=True)
    lines = str(caught.value).splitlines()
    expected = [
        ("--set seed: ", "key=value"),
        ("--set rollout.max_new_tokens=[: ",),
        ("--set data.sources.7.task=x: ", "'7'", "1"),
        ("--set iterations=1.5: iterations: ", "1.5"),
        (f"{path}: seeed: ", "'seed'"),
        (f"{path}: model.path: ", str(tmp_path / "nowhere")),
    ]
    assert len(lines) == len(expected)
    assert all(tells(line, *facts) for line, facts in zip(lines, expected, strict=True))
    assert len(refusal(path, "seed")) == 2, "files are not looked for where another machine has them"


def test_all_files_that_a_spec_extends_and_that_are_missing_are_named(tmp_path):
    path = write(tmp_path / "a.yaml", {"extends": ["b.yaml", "c.yaml"]})
    first, second, override = refusal(path, "seed")
    assert str(tmp_path / "b.yaml") in first and str(tmp_path / "c.yaml") in second
    assert override.startswith("--set seed: ")


def test_a_missing_key_is_named_at_its_place(tmp_path):
    base = write(tmp_path / "base.yaml", {"data": {"sources": [{"kind": "jsonl"}]}})
    top = write(tmp_path / "top.yaml", {"extends": "base.yaml", "name": "x"})
    path, rewards = refusal(top)
    assert tells(path, f"{base}: data.sources.0.path: ", "missing")
    assert tells(rewards, f"{top}: rewards: ", "missing")


def test_paths_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir("/")
    sources = [
        {"kind": "jsonl", "path": "../data/a.jsonl", "held_out_path": "b.jsonl"},
        {"kind": "jsonl", "path": "/c.jsonl"},
        {"kind": "jsonl", "path": "~/d.jsonl"},
    ]
    engine = {"kind": "vllm", "dtype": "float32", "environment": "envs/vllm"}
    base = tree(data={"sources": sources}, model={"kind": "folder", "path": "model"}, rollout__engine=engine)
    write(tmp_path / "specs" / "base.yaml", base)
    made = load_spec(write(tmp_path / "top.yaml", {"extends": "specs/base.yaml"}))
    assert made.model.path == str(tmp_path / "specs" / "model")
    assert [source.path for source in made.data.sources] == [
        str(tmp_path / "data" / "a.jsonl"),
        "/c.jsonl",
        str(tmp_path / "home" / "d.jsonl"),
    ]
    assert made.data.sources[0].held_out_path == str(tmp_path / "specs" / "b.jsonl")
    assert made.rollout.engine.environment == str(tmp_path / "specs" / "envs" / "vllm")


def test_options_are_passed_on_unchanged(tmp_path):
    path = write(tmp_path / "a.yaml", tree(rewards__parts__0__options={"path": "x.y", "deep": [{"path": "z"}]}))
    assert load_spec(path).rewards.parts[0].options == {"path": "x.y", "deep": [{"path": "z"}]}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("name: a\nseed: 1\nname: b\n", (", line 3: ", "'name'", "line 1")),
        (
            'rollout:\n  top_p: 1\n  temperature: 1\n  "top_p": 2\n',
            (", line 4: ", "'top_p'", "line 2"),
        ),
        (
            "data:\n  sources:\n    - {kind: jsonl,\n       kind: jsonl}\n",
            (", line 4: ", "'kind'", "line 3"),
        ),
        ("name: a\n1: b\n", (", line 2: ", "'1'")),
        (
            "name: a\non: b\n",
            (", line 2: ", "'on'"),
        ),
        ("name: a\n? [x]\n: b\n", (", line 2: ", "mapping or list")),
        ("name: a\n\tseed: 1\n", (", line 2: ", "'\\t'")),
        ("name: [unclosed", (": ", "',' or ']'")),
        ("name: a\n---\nname: b\n", (", line 2: ", "another document")),
        ("name: *nowhere\n", (": ", "'nowhere'")),
        ("data: &d\n  sources: [*d]\n", (", line 1: ", "recursive")),
        ("name: a\nseed: " + "9" * 5000 + "\n", (": ", "YAML", "limit")),
        ("name: \x07\n", (": ", "YAML", "character")),
        ("- a\n", (": ", "a list")),
        ("text", (": ", "'text'")),
        ("", (": ", "empty")),
        ("# only a comment\n", (": ", "empty")),
    ],
)
def test_invalid_yaml_is_refused(tmp_path, text, facts):
    path = write(tmp_path / "a.yaml", text)
    (line,) = refusal(path)
    assert tells(line.removeprefix(str(path)), *facts)


def test_too_deep(tmp_path):
    (line,) = refusal(write(tmp_path / "a.yaml", "[" * 3_000))
    assert tells(line, f"{tmp_path / 'a.yaml'}: ", "nested")


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.mkdir [{target}]",
        "!!python/object/new:os.mkdir [{target}]",
        "!!python/name:os.mkdir",
        "!!python/module:os",
        "!!python/tuple [1, 2]",
        "!include other.yaml",
        "!!binary aGFsbG8=",
        "!!set {{a}}",
        "!!str a",
    ],
)
def test_a_tag_is_refused_and_nothing_is_executed(tmp_path, value):
    target = tmp_path / "made"
    text = value.format(target=target)
    path = write(tmp_path / "a.yaml", f"name: a\nseed: {text}\n")
    (line,) = refusal(path)
    assert tells(line, f"{path}, line 2: ", "tag '")
    (line,) = refusal(write(tmp_path / "b.yaml", tree()), f"name={text}")
    assert tells(line, f"--set name={text}: ", "tag '")
    assert not target.exists()


@pytest.mark.parametrize("key", ["data.system_prompt", "data.sources.0.path", "name"])
def test_half_a_surrogate_pair_is_refused(tmp_path, key):
    (line,) = refusal(write(tmp_path / "a.yaml", tree()), rf'{key}="a\ud800"')
    assert tells(line, f"--set {key}=", r"'a\ud800'", "surrogate")
    (line,) = refusal(write(tmp_path / "b.yaml", 'name: a\n"b\\udfff": 1\n'))
    assert line.startswith(f"{tmp_path / 'b.yaml'}, line 2: ")


def test_an_integer_too_large_for_the_database_is_refused(tmp_path):
    path = write(tmp_path / "a.yaml", tree())
    assert load_spec(path, [f"seed={2**63 - 1}"]).seed == 2**63 - 1
    for number in (2**63, 10**400, -(10**30)):
        (line,) = refusal(path, f"iterations={number}")
        assert tells(line, f"--set iterations={number}: ", "9223372036854775807")
    (line,) = refusal(write(tmp_path / "b.yaml", f"name: a\nseed: {10**400}\n"))
    assert line.startswith(f"{tmp_path / 'b.yaml'}, line 2: ")


def test_a_file_that_cannot_be_read(tmp_path):
    assert refusal(tmp_path / "none.yaml") == [f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory"]
    assert refusal(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (line,) = refusal(tmp_path / "latin.yaml")
    assert tells(line, f"{tmp_path / 'latin.yaml'}: ", "UTF-8", "byte 9")


def test_numbers_dates_and_marks(tmp_path):
    read = parse_yaml(
        "{a: 1e-3, b: 2E5, c: -.5e+1, d: 1.5, e: 7, f: 2024-01-02, g: '1e-3', h: .nan, i: 1e, j: e5}", "x"
    )
    assert math.isnan(read.pop("h"))
    assert read == {
        "a": 1e-3, "b": 2e5, "c": -5.0, "d": 1.5, "e": 7, "f": "2024-01-02", "g": "1e-3", "i": "1e", "j": "e5",
    }  # fmt: skip
    assert type(read["b"]) is float
    (tmp_path / "marked.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    lines = refusal(tmp_path / "marked.yaml")
    assert any("a: unknown key" in line for line in lines), "a byte order mark is not part of the first key"


@pytest.mark.parametrize("link", ["[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]", "{{<<: [{0}, {0}, {0}, {0}]}}"])
def test_aliases_that_stand_for_too_many_values_are_refused(link: str) -> None:
    """Five hundred bytes would otherwise stand for more values than fit into memory."""
    first = "a0: &a0 {x: 1, y: 2}" if "<<" in link else "a0: &a0 [1, 2]"
    lines = [first, *(f"a{n}: &a{n} {link.format(f'*a{n - 1}')}" for n in range(1, 20))]
    with pytest.raises(ConfigurationError, match=r"line \d+.*100,000 values"):
        parse_yaml("\n".join(lines), "spec.yaml")


def test_anchors_and_merges_are_copies(tmp_path):
    text = """\
name: anchors
data:
  sources:
    - &first {kind: reasoning_gym, task: spell_backward, size: 10}
    - {<<: *first, size: 20}
    - *first
rewards: {parts: [{name: exact, function: exact_match}]}
"""
    made = load_spec(write(tmp_path / "a.yaml", text), ["data.sources.2.task=chain_sum"])
    assert [(source.task, source.size) for source in made.data.sources] == [
        ("spell_backward", 10),
        ("spell_backward", 20),
        ("chain_sum", 10),
    ]


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@,? \n\t01e.~<", max_size=25))
def test_any_text_is_a_value_or_a_refusal_in_one_line(text):
    try:
        parse_yaml(text, "origin")
    except ConfigurationError as error:
        assert str(error).startswith("origin")
        assert "\n" not in str(error)


def test_the_path_may_be_relative(tmp_path, monkeypatch):
    write(tmp_path / "a.yaml", tree(model={"kind": "folder", "path": "m"}))
    monkeypatch.chdir(tmp_path)
    assert load_spec(Path("a.yaml")).model.path == str(tmp_path / "m")


def test_a_key_can_be_set_in_a_section_that_the_file_leaves_out(tmp_path):
    """The section then has its default kind."""
    top = write(tmp_path / "top.yaml", tree())
    made = load_spec(top, ["algorithm.mini_batches=2", "trainer.optimizer.learning_rate=0.5"])
    assert (made.algorithm.advantage.kind, made.algorithm.mini_batches) == ("group_std", 2)
    assert made.algorithm.model_copy(update={"mini_batches": 1}) == load_spec(top).algorithm
    (line,) = refusal(top, "algorithm.mini_batches=0")
    assert tells(line, "--set algorithm.mini_batches=0: algorithm.mini_batches: ", "given: 0")


@pytest.mark.parametrize(
    "key", ["algorithm.critic.model", "algorithm.distillation.teachers.0.model", "rewards.parts.1.model"]
)
def test_a_model_with_weights_is_a_folder_unless_it_says_otherwise(tmp_path, key):
    (tmp_path / "m").mkdir()
    places = {
        "algorithm.critic.model": {"algorithm": {"advantage": {"kind": "gae"}, "critic": {"model": {"path": "m"}}}},
        "algorithm.distillation.teachers.0.model": {
            "algorithm": {"distillation": {"teachers": [{"model": {"path": "m"}}]}}
        },
        "rewards.parts.1.model": {
            "rewards": {
                "parts": [
                    {"name": "exact", "function": "exact_match"},
                    {"name": "judge", "kind": "reward_model", "model": {"path": "m"}},
                ]
            }
        },
    }
    value = load_spec(write(tmp_path / "spec.yaml", tree(**places[key])))
    for part in key.split("."):
        value = value[int(part)] if part.isdecimal() else getattr(value, part)
    assert (value.kind, value.path) == ("folder", str(tmp_path / "m"))


def test_the_name_of_a_model_is_a_folder_or_a_repository(tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    path = tmp_path / "spec.yaml"
    assert load_spec(write(path, tree(model="models/small"))).model.path == str(tmp_path / "models" / "small")
    assert load_spec(write(path, tree(model="org/small"))).model.repo == "org/small"
    for wrong in ("models/large", "./org/small", "small"):
        assert f"model: {wrong!r} is neither a folder" in refusal(write(path, tree(model=wrong)))[0]
