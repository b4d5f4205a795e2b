"""Suites of held-out sets: what is read, what makes evaluations comparable, which are regressions, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.seeding import toy_spec
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.evaluation.history import EvaluationPoint, regressions
from yatt_core.evaluation.suites import Suite, load_suite, open_suite, set_names
from yatt_core.prompts.media import verified_address
from yatt_core.spec import load_spec, override_spec
from yatt_core.spec.reading.documents import yaml_text

WORDS = ["one", "two", "two", "three", "four"]


def write_suite(folder: Path, **changes: Any) -> Path:
    rows = [json.dumps({"prompt": f"say {word}", "answer": word}) for word in WORDS]
    (folder / "words.jsonl").write_text("\n".join(rows) + "\n")
    tree = {
        "name": "mixed",
        "sets": [
            {"name": "words", "source": {"kind": "jsonl", "path": "words.jsonl"}},
            {"name": "spelling", "source": {"kind": "reasoning_gym", "task": "spell_backward"}, "tasks": 5},
        ],
    }
    path = folder / "suite.yaml"
    path.write_text(yaml_text(tree | changes))
    return path


def opened(path: Path, *overrides: str) -> Suite:
    return open_suite(load_suite(path), override_spec(toy_spec(), overrides, "test"), verified_address)


def test_the_distinct_tasks_of_all_sets_are_read_in_order(tmp_path: Path) -> None:
    suite = opened(write_suite(tmp_path))
    assert [prompt.prompt_id for prompt in suite.prompts[:4]] == [f"words/{index}" for index in range(4)]
    assert [prompt.text for prompt in suite.prompts[:4]] == ["say one", "say two", "say three", "say four"]
    assert len(suite.prompts) == 9 and {prompt.source for prompt in suite.prompts} == {0, 1}
    assert suite.run_spec.data.source_names == ("words", "spelling") == tuple(set_names(suite.spec))
    limited = write_suite(
        tmp_path, sets=[{"name": "w", "source": {"kind": "jsonl", "path": "words.jsonl"}, "tasks": 2}]
    )
    assert len(opened(limited).prompts) == 2


def test_the_example_fits_the_quickstart() -> None:
    suite = load_suite(ROOT / "configs" / "suites" / "spelling.yaml")
    opened_suite = open_suite(suite, load_spec(ROOT / "configs" / "quickstart.yaml"), verified_address)
    assert len(opened_suite.prompts) == 100 and opened_suite.run_spec.evaluation.samples == 4


def test_held_out_rows_of_a_source_are_the_tasks(tmp_path: Path) -> None:
    path = write_suite(tmp_path)
    (tmp_path / "held.jsonl").write_text(json.dumps({"prompt": "say ten", "answer": "ten"}) + "\n")
    source = {"kind": "jsonl", "path": "words.jsonl", "held_out_path": "held.jsonl"}
    assert [p.text for p in opened(write_suite(tmp_path, sets=[{"name": "w", "source": source}])).prompts] == [
        "say ten"
    ]
    assert path.exists()


def test_the_digest_follows_what_answers_depend_on(tmp_path: Path) -> None:
    first = tmp_path / "a"
    second = tmp_path / "b"
    first.mkdir()
    second.mkdir()
    digest = opened(write_suite(first)).digest
    assert opened(write_suite(second)).digest == digest, "where the files are does not matter"
    for same in ("guards.kl.window=3", "iterations=9", "trainer.optimizer.learning_rate=1e-4", "data.held_out=7"):
        assert opened(write_suite(first), same).digest == digest, same
    for other in ("rollout.max_new_tokens=5", "seed=7", "data.system_prompt=hello", "rewards.correct_at=0.25"):
        assert opened(write_suite(first), other).digest != digest, other
    assert opened(write_suite(first, sampling={"samples": 2})).digest != digest
    path = write_suite(second)
    (second / "words.jsonl").write_text((second / "words.jsonl").read_text().replace("four", "five"))
    assert opened(path).digest != digest


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sets": []}, "sets"),
        ({"samplng": None}, "did you mean 'sampling'"),
        ({"name": "Not a name"}, "name"),
        ({"level": 2}, "level"),
        ({"sampling": {"samples": 2, "pass_at": [3]}}, "pass_at"),
        (
            {"sets": [{"name": "w", "source": {"kind": "jsonl", "path": "absent.jsonl"}}]},
            "mixed, set w: .*absent.jsonl",
        ),
        ({"sets": [{"name": "w", "source": {"kind": "reasoning_gym", "task": "x"}}]}, "mixed, set w: "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = write_suite(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=told):
        opened(path)


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    source = {"kind": "jsonl", "path": "words.jsonl"}
    with pytest.raises(ConfigurationError, match="only"):
        load_suite(write_suite(tmp_path, sets=[{"name": "w", "source": source}, {"name": "w", "source": source}]))


def point(iteration: int, right: int, digest: str = "d", tasks: int = 20) -> EvaluationPoint:
    return EvaluationPoint(iteration, digest, {("s", str(n)): float(n < right) for n in range(tasks)})


def test_a_regression_is_worse_than_the_best_or_the_last() -> None:
    history = [point(0, 10), point(2, 18), point(4, 17), point(6, 11), point(8, 4)]
    found = regressions(history, "mcnemar", 0.05, 1000, 0)
    assert [[(each.against, each.iteration) for each in worse] for worse in found] == [
        [], [], [], [("best", 2), ("last", 4)], [("best", 2), ("last", 6)],
    ]  # fmt: skip
    assert found[3][0].found.p_value == 1 / 2**7


def without_score(whole: EvaluationPoint, tasks: range) -> EvaluationPoint:
    """Returns an evaluation in which no answer to some tasks has a score."""
    return replace(whole, scores={**whole.scores} | {("s", str(n)): None for n in tasks})


def test_what_has_no_score_is_no_regression_and_hides_none() -> None:
    first = point(0, 18)
    assert regressions([first, without_score(first, range(12))], "mcnemar", 0.05, 1000, 0) == [[], []]
    assert regressions([first, without_score(first, range(20))], "mcnemar", 0.05, 1000, 0) == [[], []]
    assert regressions([without_score(first, range(20)), point(2, 0)], "mcnemar", 0.05, 1000, 0) == [[], []]
    _, (worse,) = regressions([first, without_score(point(2, 0), range(10, 20))], "mcnemar", 0.05, 1000, 0)
    assert (worse.found.tasks, worse.found.wins, worse.found.p_value) == (10, 10, 1 / 2**10)


def test_the_best_evaluation_is_so_by_the_tasks_that_have_a_score() -> None:
    best = without_score(point(2, 20), range(10))
    _, _, found = regressions([point(0, 12), best, point(4, 12)], "mcnemar", 0.05, 1000, 0)
    assert [(each.against, each.iteration) for each in found] == [("best", 2)]
    assert (best.accuracy, without_score(best, range(20)).accuracy) == (1.0, 0.0)


def test_evaluations_of_another_digest_are_not_compared() -> None:
    assert regressions([point(0, 20), point(2, 0, digest="e")], "mcnemar", 0.05, 1000, 0) == [[], []]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_a_history_that_never_falls_has_no_regression(rights: list[int]) -> None:
    history = [point(number, right, tasks=12) for number, right in enumerate(sorted(rights))]
    assert regressions(history, "mcnemar", 0.5, 100, 0) == [[] for _ in rights]
