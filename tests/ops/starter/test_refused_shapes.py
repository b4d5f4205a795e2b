"""Shapes of the field that no run learns from are refused by name, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.conftest import Yatt
from tests.ops.starter import field_files as field
from tests.ops.starter.numbered_rows import many, refusal
from tests.ops.starter.sample_files import Row, made, user, write_jsonl


@pytest.mark.parametrize(
    ("row", "says", "remedy"),
    [
        (field.scored_responses, "scores or ranks", "one row for each pair, with 'chosen' and 'rejected'"),
        (field.attributes, "no objective learns scores", "'chosen' and 'rejected', a 'label'"),
        (field.tool_calls, "no built-in reward compares calls", "use --reward FILE:FUNCTION, or conversations"),
        (field.tree, "single messages", "one row for each conversation"),
        (field.issues, "repository's environment", "use --reward FILE:FUNCTION"),
        (field.steps, "label the steps", "expected rows with 'chosen' and 'rejected', or prompts with answers"),
        (field.wrong_answers, "no order of the choices", "expected 'choices' in the order"),
        (field.two_responses, "which is better", "expected the better one under 'chosen'"),
        (field.pytest_functions, "functions of pytest, which nothing calls", "expected assert statements"),
    ],
)
def test_what_no_run_learns_from_is_refused_by_name(row: Callable[[int], Row], says: str, remedy: str) -> None:
    text = refusal(made(row))
    assert says in text and remedy in text


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"answer": ("3", '{"keyword": "rope"}')},
            "'answer' are 6 texts and 6 JSON texts of objects; expected answers of one",
        ),
        (
            {"answer": {"value": "Ada", "aliases": ["Bay"]}},
            "12 objects; --answer-field answer.value or answer.aliases takes",
        ),
        (
            {"answers": {"text": (["Ada"], []), "answer_start": ([3], [])}},
            "12 objects; --answer-field answers.text takes",
        ),
        ({"reward_model": {"ground_truth": ("3", {"inputs": ["1"]})}}, "6 texts and 6 objects"),
        ({"answer": {"reason": "so"}}, "12 objects; expected a text"),
        ({"answer": [[{"x": 1}]]}, "12 lists; expected a text"),
        ({"answer": ("3", "N/A", "4")}, "4 of the first 12 answers under 'answer' are 'N/A'"),
        ({"answer": ("3", "N/A", "4")}, "the first of them is answer 2"),
    ],
)
def test_answers_that_cannot_be_compared_are_named_as_they_are(row: Row, says: str) -> None:
    assert says in refusal(many(question="§?", **row))


@pytest.mark.parametrize(
    ("rejected", "says"),
    [
        ("", "'rejected' is empty; expected a text"),
        (" ", "'rejected' is empty"),
        (None, "'rejected' is null"),
        ({"from": "gpt", "value": "z"}, "is one message that is in no list; expected a text, or a list"),
        (user("z"), "is a list of messages that ends with one of 'user'"),
        (3, "is integer"),
    ],
)
def test_responses_that_cannot_be_learnt_are_named_as_they_are(rejected: object, says: str) -> None:
    assert "row 1: " in (text := refusal(many(prompt="§?", chosen="y", rejected=rejected))) and says in text


def test_a_refusal_ends_the_command_and_writes_nothing(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", made(field.tree))
    answer = yatt("init", str(tmp_path / "run"), "--data", str(data), "--model", str(model("plain")))
    assert answer.code == 2 and f"--data {data}: the rows are single messages" in answer.err
    assert not (tmp_path / "run").exists()
