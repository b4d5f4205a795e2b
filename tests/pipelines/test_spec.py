"""The spec of a pipeline: what it refuses, and how it says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flows.pipelines.references import misspelled, resolved
from flows.pipelines.spec import load_pipeline, parse_pipeline
from yatt_core.errors import ConfigurationError

RUN: dict[str, Any] = {"kind": "train", "spec": "run.yaml"}


def parsed(**jobs: Any) -> Any:
    return parse_pipeline({"name": "p", "jobs": jobs}, "p.yaml")


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ({"a": RUN | {"need": ["b"]}}, "did you mean 'needs'"),
        ({"a": RUN | {"kind": "trian"}}, "did you mean 'train'"),
        ({"first": RUN, "b": RUN | {"needs": ["frist"]}}, "did you mean 'first'"),
        ({"a": RUN | {"needs": ["b"]}, "b": RUN | {"needs": ["a"]}}, "a -> b -> a"),
        ({"a": RUN | {"set": ["model.path=${jobs.a.model}"]}}, "a -> a"),
        ({"a": RUN, "b": RUN | {"set": ["model.path=${jobs.a.weights}"]}}, "'a' has no 'weights'"),
        ({"a": RUN, "b": {"kind": "gate", "of": "a", "at_least": {"accuracy": 0.1}}}, "expected one of kind evaluate"),
        ({"a": RUN, "e": {"kind": "evaluate", "of": "a"}, "g": {"kind": "gate", "of": "e"}}, "without a condition"),
    ],
)
def test_mistakes_are_named(jobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parsed(**jobs)


def test_a_reference_is_a_need_and_is_replaced_by_what_the_job_produced() -> None:
    text = "model.path=${jobs.a.model}"
    spec = parsed(b=RUN | {"set": [text]}, a=RUN)
    assert spec.needs("b") == {"a"} and spec.order() == ["a", "b"]
    assert spec.wants("a", "model") and not spec.wants("a", "run")
    assert resolved(text, {"a": {"model": "/m"}}) == "model.path=/m"


def test_a_runs_spec_given_as_a_pipeline_is_named_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "pipe.yaml").write_text("name: a\ntrainer: {}\n")
    with pytest.raises(ConfigurationError, match="looks like the spec of a run, since it has trainer, but no jobs"):
        load_pipeline(tmp_path / "pipe.yaml")


def test_only_what_looks_like_a_reference_is_taken_for_a_misspelled_one() -> None:
    text = "system_prompt=give ${x}$ as ${jobs.a.model} or ${jobs.a}, ${Job.a.run}"
    assert list(misspelled(text, {"a"})) == [("${jobs.a}", ""), ("${Job.a.run}", "${jobs.a.run}")]


@pytest.mark.parametrize(
    ("triggers", "said"),
    [
        ([{"kind": "pipeline", "name": "line"}], "triggers.0.name: 'line' is this pipeline"),
        ([{"kind": "data", "path": "rows"}] * 2, "triggers.1: the same trigger stands there twice"),
        ([{"kind": "schedule"}], "expected exactly one of cron and interval"),
        ([{"kind": "alias", "run": "a", "alias": "champoin"}], "alias"),
        ([{"kind": "tide"}], "triggers.0"),
    ],
)
def test_mistakes_in_triggers_are_named(triggers: list[dict[str, str]], said: str) -> None:
    tree = {"name": "line", "jobs": {"a": {"kind": "train", "spec": "run.yaml"}}, "triggers": triggers}
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parse_pipeline(tree, "pipeline.yaml")
