"""Columns without which rows mean something else: what they are about, further answers, thoughts, and a second answer."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.recognition.recognised import ObjectiveKind, RecognitionOptions
from tests.ops.starter.numbered_rows import many, meaning, refusal
from tests.ops.starter.sample_files import answered, user

SFT = ObjectiveKind.SFT


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"paragraphs": [{"title": "x", "paragraph_text": "Bob § wrote"}]}, "paragraphs"),
        ({"documents": ["§ is a knot."]}, "documents"),
        ({"documents": '["§ is a knot."]'}, "documents"),
        ({"code": "print('§')"}, "code"),
        ({"code": "def f(n): return n", "question": "", "input": "§"}, "code"),
        ({"code": "def f(n): return '§'", "question": "", "input": "§", "output": "§ §"}, "code"),
        ({"instruction": "§? Answer as a pirate.", "question": "§?"}, "instruction"),
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
    assert meaning(about, RecognitionOptions(prompt_field="question")).unused == ("documents",)


def test_code_beside_tests_is_a_solution() -> None:
    found = meaning(
        many(text="Write plus_one for §.", code="def plus_one(): ...", test_list=["assert plus_one(1) == 2"])
    )
    assert (found.objective, found.unused) == ("rl", ("code",))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "3", "target": "0"}, "'answer' and 'target' have different answers in 12 of the first 12 rows"),
        ({"answer": ("3", "4"), "final_answer": "3"}, "in 6 of the first 12 rows; row 2: '4' and '3'"),
        ({"answer": "Ada", "ground_truth": ["Bo", "Cy"]}, "'Ada' and ['Bo', 'Cy']"),
        ({"answer": "so\n#### 3", "solution": "#### 4"}, "'answer' and 'solution'"),
        ({"options": {"A": "x", "B": "y"}, "answer": ("y", "x"), "answer_idx": "A"}, "row 1: 'A' and 'y'"),
        ({"choices": ["x", "y", "z"], "answer": "x", "gold": (0, 2)}, "row 2: 'x' and 2"),
        ({"question": "§ A. x B. y", "answer": "A", "correct": "B"}, "'A' and 'B'"),
    ],
)
def test_answers_that_differ_are_refused_with_both(row: dict[str, Any], says: str) -> None:
    text = refusal(many(**{"question": "§?", **row}))
    assert says in text and "--answer-field" in text


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "1,000", "final_answer": "$1000.0", "target": 1000},
        {"answer": "Ada", "target": ["ada", "Bo"]},
        {"answer": r"\left(1, 2\right)", "final_answer": "(1,2)"},
        {"answer": "Ada", "label": (0, 1)},
        {"answer": "Ada", "gold": ("Bo", "N/A")},
        {"options": {"A": "x", "B": "y"}, "answer": ("x", "y"), "answer_idx": ("A", "B"), "label": (0, 1)},
    ],
)
def test_answers_that_agree_or_are_of_another_kind_are_no_conflict(row: dict[str, Any]) -> None:
    assert meaning(many(question="§?", **row)).objective == "rl"


def test_an_option_says_which_answer_is_right() -> None:
    rows = many(question="§?", answer="3", target="0", answer_aliases=["three"])
    assert meaning(rows, RecognitionOptions(answer_field="target")).source["answer_field"] == "target"


def test_further_right_answers_are_not_taken_for_wrong() -> None:
    text = refusal(many(question="§?", answer="Ada", answer_aliases=["Ada Bay"]))
    assert "further right answers under 'answer_aliases'" in text and "takes those of" not in text
    assert "--answer-field aliases takes those" in refusal(many(question="§?", answer="Ada", aliases=["Bay", "Ada"]))
    assert "takes those of" not in refusal(many(question="§?", answer="Ada", possible_answers='["Bay", "Ada"]'))
    assert meaning(many(question="§?", answer="Ada", answer_aliases=[])).source["answer_field"] == "answer"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{"role": "system", "content": "be B"}, *user("§?")], "system_prompt": "be A"},
        {"prompt": "§?", "system": "be B", "system_prompt": "be A"},
    ],
)
def test_system_messages_that_differ_are_refused_with_both(row: dict[str, Any]) -> None:
    text = refusal(many(answer="3", **row))
    assert "row 1 has different system messages" in text and "'be A'" in text and "'be B'" in text
    same = {**row, "system_prompt": "be B"}
    assert meaning(many(answer="3", **same)).objective == "rl"


@pytest.mark.parametrize(
    ("row", "key", "asked"),
    [
        (
            {"Question": "§?", "Complex_CoT": "hm", "Response": "§."},
            "Complex_CoT",
            RecognitionOptions(None, "Response", SFT),
        ),
        (
            {"prompt": "§?", "reasoning": "so", "response": ("§ so", "yes")},
            "reasoning",
            RecognitionOptions(None, "response", SFT),
        ),
        (
            {"instruction": "§?", "thinking": ("", "so"), "output": "§ is."},
            "thinking",
            RecognitionOptions(None, "output", SFT),
        ),
        (
            {"prompt": "§?", "cot": ["a"], "completion": answered("x", "§")[1:]},
            "cot",
            RecognitionOptions(None, "completion", SFT),
        ),
        (
            {"messages": answered("§?", "y"), "reasoning_content": "so"},
            "reasoning_content",
            RecognitionOptions("messages"),
        ),
    ],
)
def test_thoughts_in_a_column_of_their_own_are_not_dropped(
    row: dict[str, Any], key: str, asked: RecognitionOptions
) -> None:
    rows = many(**row)
    text = refusal(rows)
    option = f"--objective sft --answer-field {asked.answer_field}" if asked.answer_field else "--prompt-field messages"
    assert f"thoughts under {key!r}" in text and option in text and "'reasoning_content'" in text
    assert meaning(rows, asked).unused == (key,)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "§?", "reasoning": "so it is", "response": "<think>\nso it is, yes\n</think>\n\n§"},
        {"prompt": "§?", "reasoning": "so it is", "response": "so it is, hence §"},
        {
            "messages": [*user("§?"), {"role": "assistant", "content": "y", "reasoning_content": "so"}],
            "reasoning": "so",
        },
    ],
)
def test_thoughts_that_responses_have_are_learnt_with_them(row: dict[str, Any]) -> None:
    assert meaning(many(**row)).objective == "sft"


def test_thoughts_beside_an_answer_mean_two_things() -> None:
    rows = many(question="§?", answer=("3", "4"), thinking_trajectories=["I count §"])
    text = refusal(rows)
    assert "the rows mean two things" in text and "thoughts under 'thinking_trajectories'" in text
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.RL)).objective == "rl"
    assert meaning(rows, RecognitionOptions(objective=SFT, answer_field="answer")).objective == "sft"
    assert "learns the responses without thoughts" in refusal(rows, RecognitionOptions(objective=SFT))


@pytest.mark.parametrize(
    ("task", "test"),
    [
        (("Write a function to sum up §.", "Write a function find_it to add §."), "assert find_it(1) == 1"),
        ("Write a function to add §.", "assert add(1) == 1"),
        ("Write a function to add (or sum up) §.", "assert set(total(1)) == {1}"),
        ("Write a function that adds up §.", "assert add(1) == 1"),
    ],
)
def test_tests_are_shown_if_a_task_does_not_name_their_function(task: Any, test: str) -> None:
    rows = many(text=task, test_list=[test])
    found = meaning(rows)
    assert "test_list" in found.source["prompt_template"]
    count = "6 of the first 12 tasks do" if isinstance(task, tuple) else "the task does"
    assert found.reasons == (
        f"the prompt shows the tests in 'test_list', because {count} not name the function that they call",
    )
    as_text = [{**row, "test_list": f'["{test}"]'} for row in rows]
    assert "do not name the function that 'test_list' tests (row 1)" in refusal(as_text)


@pytest.mark.parametrize(
    ("task", "test"),
    [
        ("Write a function find_it to add §.", "assert find_it(1) == 1"),
        ("Write a function add to sum up §.", "assert not add(1)"),
        ("Write `add` for §.", "assert add(1) == 1"),
        ("Write add(x) for §.", "assert sorted(add(1)) == [1]"),
        ("Write a function for § and call it add.", "assert (add(1) == 1)"),
        ("Write a class Stack for §.", "assert Stack().size() == 0"),
    ],
)
def test_tests_are_not_shown_if_all_tasks_name_their_function(task: str, test: str) -> None:
    assert meaning(many(text=task, test_list=[test])).source["prompt_field"] == "text"


@pytest.mark.parametrize("mark", [{"train": False}, {"training": True}, {"loss": 0}])
def test_marks_of_other_programs_on_what_is_learnt_are_refused(mark: dict[str, Any]) -> None:
    first, second = answered("§?", "y")
    text = refusal([*many(messages=[first, second]), {"messages": [first, {**second, **mark}]}])
    assert "row 13: 'messages' has a message with the key" in text and "expected 'weight': 0" in text


@pytest.mark.parametrize(
    ("weight", "learnt"), [(0, "the assistant's turns without the weight 0"), (1, "all turns of the assistant")]
)
def test_what_is_said_to_be_learnt_follows_the_weights(weight: int, learnt: str) -> None:
    unsaid = {"role": "assistant", "content": "y", "weight": weight}
    rows = many(messages=[*user("§?"), unsaid, *answered("and?", "z")])
    assert f"of which {learnt} are learnt" in meaning(rows).shape
