"""Shapes of the field that no run learns from are refused by name, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.conftest import Yatt
from tests.ops.starter import field_files as field
from tests.ops.starter.numbered_rows import refusal
from tests.ops.starter.sample_files import Row, made, write_jsonl


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
        (field.pytest_functions, "tests something", "expected assert statements"),
    ],
)
def test_what_no_run_learns_from_is_refused_by_name(row: Callable[[int], Row], says: str, remedy: str) -> None:
    text = refusal(made(row))
    assert says in text and remedy in text


def test_a_refusal_ends_the_command_and_writes_nothing(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", made(field.tree))
    answer = yatt("init", str(tmp_path / "run"), "--data", str(data), "--model", str(model("plain")))
    assert answer.code == 2 and f"--data {data}: the rows are single messages" in answer.err
    assert not (tmp_path / "run").exists()
