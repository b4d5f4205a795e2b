"""The rewards that follow from answers and prompts, called on what people and models write."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.recognition.answer_kinds import AnswerKind, fits, kind_of
from ops.starter.recognition.recognised import Abilities, Recognised
from tests.ops.starter.numbered_rows import MODEL, Rows, many, meaning, refusal
from tests.ops.starter.sample_files import user
from yatt_core.datasets.answers import read_answers
from yatt_core.prompts.keys import value_at
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.builtin import ExactMatch, exact_match
from yatt_core.rewards.mathematics import MathEqual, math_equal

NO_SYSTEM = Abilities()
LINE = 'Which is §? End with a line "Answer: " and the answer.'
HASHES = 'Which is §? End with "####" and the answer.'
BOX = r"Which is §? Put it in \boxed{}."
TAG = "Which is §? Put it in <answer> and </answer>."
SOLUTION = "There are 5 apples and 3 pears, so B.\n#### "


def scored(found: Recognised, row: dict[str, Any], response: str) -> float:
    """Returns the score of a response to a row."""
    assert found.reward is not None
    answers = read_answers(value_at(row, found.source["answer_field"]), "answer")
    prompt = Prompt(0, 0, "0/1", "?", answers.first, row, other_answers=answers.others)
    if found.reward.function == "exact_match":
        return exact_match(prompt, response, ExactMatch.model_validate(dict(found.reward.options)))
    return math_equal(prompt, response, MathEqual.model_validate(dict(found.reward.options)))


def first_score(rows: Rows, response: str, model: Abilities = MODEL) -> float:
    return scored(meaning(rows, model=model), rows[0], response)


@pytest.mark.parametrize(
    ("prompt", "response", "expected"),
    [
        (LINE, "Answer: 4, as shown", 1),
        (LINE, "Answer: 4.", 1),
        (LINE, "Answer: 4\n\n5 is not it.", 1),
        (LINE, "**Answer:** $\\boxed{4}$", 1),
        (LINE, "Answer: \\(4\\)", 1),
        (LINE, "Answer: 4.00 apples", 1),
        (LINE, "Answer: 4%", 1),
        (LINE, "Answer: 4/2", 0),
        (LINE, "Answer: 4^{10}", 0),
        (LINE, "Answer: 4+1", 0),
        (LINE, "Answer: 4-1", 0),
        (LINE, "Answer: 4,000", 0),
        (LINE, "Answer: 4,000/5", 0),
        (LINE, "Answer: -4", 0),
        (LINE, "4", 0),
        (HASHES, "#### **4**", 1),
        (HASHES, "#### $4", 1),
        (HASHES, "#### 4/3", 0),
        (HASHES, "Answer: 4", 0),
    ],
)
def test_numbers_are_read_as_they_are_written(prompt: str, response: str, expected: float) -> None:
    assert first_score(many(prompt=prompt, answer=("4", "-12")), response) == expected


@pytest.mark.parametrize(
    ("response", "expected"), [("Answer: \u22124", 1), ("Answer: -$4", 1), ("Answer: 4", 0), ("Answer: \u20134.0", 1)]
)
def test_any_minus_is_read(response: str, expected: float) -> None:
    assert first_score(many(prompt=LINE, answer=("-4", "3")), response) == expected


@pytest.mark.parametrize(
    ("answers", "right", "wrong"),
    [
        (("C", "B"), "Answer: C", "Answer: B"),
        (("(C)", "(B)"), "#### (C)", "#### (B)"),
        (("3/4", "1/2"), r"\boxed{\frac{3}{4}}", r"\boxed{4}"),
        (("Ada", "Bo"), "Answer: Ada.", "Answer: Bo"),
        (("true", "false"), "So true.", "It is not true but false."),
        ((r"\boxed{x+1}", r"\boxed{x}"), r"\boxed{1+x}", r"\boxed{x}"),
    ],
)
def test_what_is_behind_hashes_is_the_answer(answers: tuple[str, str], right: str, wrong: str) -> None:
    rows = many(question="Which of A, B and C is §?", answer=tuple(f"{SOLUTION}{answer}" for answer in answers))
    assert kind_of([row["answer"] for row in rows]) is AnswerKind.AFTER_HASHES
    assert (first_score(rows, right), first_score(rows, wrong)) == (1, 0)


@pytest.mark.parametrize("prompt", [HASHES, LINE, TAG, BOX])
@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        (("Ada", "Bo"), "Cy"),
        (("B", "C"), "C"),
        (("(B)", "(C)"), "(C)"),
        (("yes", "no"), "no"),
        (("7", "12"), "12"),
        ((r"\frac{1}{2}", r"\sqrt{3}"), r"\sqrt{3}"),
    ],
)
@pytest.mark.parametrize("solved", [False, True])
def test_the_answer_is_read_where_the_prompts_ask_for_it(
    prompt: str, answers: tuple[str, str], wrong: str, solved: bool
) -> None:
    form = {HASHES: "#### {}", LINE: "Answer: {}", TAG: "<answer>{}</answer>", BOX: "\\boxed{{{}}}"}[prompt]
    given = tuple(f"{SOLUTION}{answer}" for answer in answers) if solved else answers
    rows = many(prompt=f"{prompt} (A, B or C)", answer=given)
    found = meaning(rows)
    assert found.system_prompt is None
    assert scored(found, rows[0], f"I think {wrong}, no.\n{form.format(answers[0])}") == 1
    assert scored(found, rows[0], f"I think {answers[0]}, no.\n{form.format(wrong)}") == 0


@pytest.mark.parametrize(
    ("answers", "response", "expected"),
    [
        (("A", "B"), "A knot is B.\nAnswer: A", 1),
        (("A", "B"), "A knot is tied.", 0),
        (("Paris", "Rome"), "It is far.\nAnswer: Paris", 1),
        (("Paris", "Rome"), "**Paris**.", 1),
        (("Paris", "Rome"), "The capital is Paris", 0),
    ],
)
def test_prompts_that_ask_for_no_form_are_asked_for_a_line(
    answers: tuple[str, str], response: str, expected: float
) -> None:
    rows = many(question="Which is §?\nA. x\nB. y", answer=answers)
    found = meaning(rows)
    assert found.system_prompt == 'End with a line "Answer: " and the answer alone.'
    assert scored(found, rows[0], response) == expected


@pytest.mark.parametrize(
    ("prompt", "asks"),
    [
        ("Is § wet?", 'End with a line "Answer: " and true or false.'),
        ("§ is wet. True or false?", None),
        ("Is § wet?\nAnswer:", None),
    ],
)
def test_questions_that_people_answer_with_yes_are_asked_for_true(prompt: str, asks: str | None) -> None:
    rows = many(question=prompt, answer=(True, False))
    found = meaning(rows)
    assert found.system_prompt == asks
    assert [scored(found, rows[0], text) for text in ("So:\nAnswer: true", "Not false, but True.", "false")] == [
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("prompt", "answers", "says"),
    [
        ("Is § even? Answer yes or no.", (True, False), "are true or false, and 12 of the first 12 prompts"),
        ("Is § even? (Yes/No)", ("True", "False"), "ask for yes or no (row 1)"),
        ("Is § even? 'no' or 'yes'?", ("True", "False"), "ask for yes or no"),
        ("§ is even. True or false?", ("yes", "no"), "are yes or no, and 12 of the first 12 prompts"),
    ],
)
def test_prompts_that_ask_for_other_words_are_refused(prompt: str, answers: tuple[Any, Any], says: str) -> None:
    rows = many(question=prompt, answer=answers)
    assert says in refusal(rows)
    mixed = [*rows, *many(question="Is § wet?", answer=answers)]
    assert "12 of the first 24 prompts" in refusal(mixed)


@pytest.mark.parametrize(
    "prompt",
    ["Is § even? Yes or no? Write true or false.", "No doubt, yes, § is wet?", "Is there no § (yes, a true one)?"],
)
def test_words_that_are_not_asked_for_are_none_to_choose_from(prompt: str) -> None:
    assert meaning(many(question=prompt, answer=(True, False))).objective == "rl"


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [
        ("How many § apples? Answer: {}", ("5", "6")),
        ("How many § apples?\n#### {}", ("so\n#### 5", "#### 6")),
        ("What is §?\nThe answer is **{}**.", ("Ada", "Bo")),
        (r"What is §? \boxed{{{}}}", (r"So $\boxed{x}$.", r"$\boxed{y}$")),
        ("What is §? <answer>{}</answer>", ("Ada", "Bo")),
    ],
)
def test_prompts_that_end_with_their_answer_are_refused(prompt: str, answers: tuple[str, str]) -> None:
    finals = ("x", "y") if "boxed" in prompt else tuple(answer.rpartition("#### ")[2] for answer in answers)
    rows = many(prompt=tuple(prompt.format(final) for final in finals), answer=answers)
    assert "12 of the first 12 prompts under 'prompt' end with their own answer" in refusal(rows)
    assert meaning([{**row, "prompt": f"{row['prompt']} Sure?"} for row in rows]).objective == "rl"


def test_prompts_that_no_system_message_reaches_are_not_asked() -> None:
    words = many(prompt="§?", answer=("Paris", "Rome"))
    assert meaning(words, model=NO_SYSTEM).system_prompt is None
    own = [{**row, "prompt": [{"role": "system", "content": "s"}, *user(row["prompt"])]} for row in words]
    assert meaning(own).system_prompt is None
    assert meaning(many(prompt="§?", system="s", answer=("Paris", "Rome"))).system_prompt is None
    assert meaning(many(prompt="§?\nAnswer:", answer=("Paris", "Rome"))).system_prompt is None


@pytest.mark.parametrize(
    ("response", "expected"), [("So (A).", 1), ("So A", 1), ("B, no: A rope.", 0), ("A rope: B.", 0)]
)
def test_the_article_is_no_letter_of_a_choice(response: str, expected: float) -> None:
    rows = many(question="Which is §?\nA. x\nB. y", answer=("A", "B"))
    assert first_score(rows, response, NO_SYSTEM) == expected


@pytest.mark.parametrize(
    "answers",
    [
        ["H2O", "CO2"],
        ["3 cm", "5 kg"],
        ["5 g", "7 m"],
        ["192.168.0.1", "10.0.0.2"],
        ["0x1F", "0x2F"],
        ["A2", "B3"],
        ["2A", "3B"],
        ["E1.9", "F2.10"],
        ["3:4", "6:8"],
        ["10-12", "555-1234"],
    ],
)
def test_names_with_digits_are_words(answers: list[str]) -> None:
    assert kind_of(answers) is AnswerKind.WORDS


@pytest.mark.parametrize(
    "answers", [["3/4", "x+1"], ["2x-1", "3y"], ["2pi", "sin(2x)"], ["(1,2)", "[0, 3]"], ["2^10", "-3/4"]]
)
def test_expressions_are_mathematics(answers: list[str]) -> None:
    assert kind_of(answers) is AnswerKind.FORMULA


@pytest.mark.parametrize("text", ["[0, 3]", '["\\\\frac{1}{7}"]', "[]", '["Ada"]'])
def test_lists_as_json_text_are_refused(text: str) -> None:
    assert "JSON texts of lists" in refusal(many(prompt="§?", answer=text))
    assert "JSON texts of lists" in refusal(many(prompt=user("§?"), reward_model={"ground_truth": text}))


def test_an_interval_among_expressions_is_compared_as_it_is_written() -> None:
    rows = many(prompt="§?", answer=("[0, 3]", "x+1", "2/3"))
    assert (first_score(rows, r"\boxed{[0,3]}"), first_score(rows, r"\boxed{0}")) == (1, 0)


def test_each_of_several_answers_is_right_and_that_is_said() -> None:
    rows = many(prompt="§?", answer=[3, 7])
    assert "each of the answers in a list under 'answer' is right" in meaning(rows).reasons
    assert [first_score(rows, text) for text in ("3", "7", "5")] == [1, 1, 0]
    assert meaning(many(prompt="§?", answer=[3])).reasons == ()


@pytest.mark.parametrize(
    ("answers", "others", "expected"),
    [
        (["-1", "-1"], ["0", "3"], True),
        (["?", "?"], ["0", "3"], False),
        (["E"], ["A", "B"], False),
        (["B"], ["A", "B"], True),
        (["3"], [r"\frac{1}{2}"], True),
        ([r"\frac{1}{2}"], ["3"], False),
        (["no answer at all is given here"], ["Ada"], False),
        (["a\n#### B"], ["a\n#### 3"], False),
        (["n/a"], ["Ada"], False),
    ],
)
def test_a_reward_reads_answers_of_its_own_form(answers: list[str], others: list[str], expected: bool) -> None:
    assert fits(answers, others) is expected
