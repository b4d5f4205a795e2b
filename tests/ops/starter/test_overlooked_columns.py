"""Columns without which rows mean something else: what they are about, further answers, thoughts, and a second answer."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.recognition.recognised import Asked
from tests.ops.starter.numbered_rows import many, meaning, refusal


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"paragraphs": [{"title": "x", "paragraph_text": "Bob § wrote"}]}, "paragraphs"),
        ({"documents": ["§ is a knot."]}, "documents"),
        ({"documents": '["§ is a knot."]'}, "documents"),
        ({"code": "print('§')"}, "code"),
        ({"code": "def f(n): return n", "question": "", "input": "§"}, "code"),
        ({"db_schema": "CREATE TABLE knots"}, "db_schema"),
        ({"Schema": {"knots": ["name"]}}, "Schema"),
        ({"instruction": "You are a pirate. Answer the question."}, "instruction"),
        ({"contexts": ["§?", "not in the question"]}, "contexts"),
    ],
)
def test_what_a_question_may_be_about_is_not_left_out(row: dict[str, Any], key: str) -> None:
    rows = many(**{"question": "§?", "answer": ("Ada", "Bo"), **row})
    text = refusal(rows)
    assert f"are about {key!r}" in text and "--prompt-field" in text


def test_what_the_question_shows_already_is_no_loss() -> None:
    row = {"question": "A knot: §. Who tied it?", "answer": ("Ada", "Bo"), "documents": ["A knot: §"], "passages": []}
    assert meaning(many(**row, code="§.")).source["prompt_field"] == "question"
    about = many(question="§?", answer=("Ada", "Bo"), documents=["It is §"])
    assert meaning(about, Asked(prompt_field="question")).unused == ("documents",)


def test_code_beside_tests_is_a_solution() -> None:
    found = meaning(
        many(text="Write plus_one for §.", code="def plus_one(): ...", test_list=["assert plus_one(1) == 2"])
    )
    assert (found.objective, found.unused) == ("rl", ("code",))
