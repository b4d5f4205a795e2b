"""Rows that look like something else than they are: what they mean, or what is refused with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.recognition.recognised import Abilities, ObjectiveKind, RecognitionOptions
from tests.ops.starter.numbered_rows import WORDS, Rows, many, meaning, refusal
from tests.ops.starter.sample_files import answered, user

PAIR = {"chosen": "Sure, here is rope § well", "rejected": "Sure, here is cord § badly"}
TALK = answered("§ x?", "y")


@pytest.mark.parametrize(
    ("rows", "label"),
    [
        (many(messages=TALK, label=(True, False)), "label"),
        (many(conversations=TALK, kto_tag=(1, 0)), "kto_tag"),
        (many(prompt=TALK, desirable=(False, True), system="Be kind."), "desirable"),
    ],
)
def test_conversations_with_labels_are_unpaired_preferences(rows: Rows, label: str) -> None:
    found = meaning(rows)
    assert (found.objective, found.source["label_field"], found.unused) == ("kto", label, ())


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (many(messages=[*TALK, *answered("and?", "z")], label=(True, False)), "several turns"),
        (many(messages=TALK, label=(1, -1)), "label under 'label' that is -1"),
        (many(messages=TALK, label=("good", "bad")), "'good'"),
        (many(messages=TALK, Thumbs=("up", "down")), "'up'"),
        (many(messages=TALK, label=(True, None, False)), "None"),
    ],
)
def test_labels_of_conversations_that_are_not_clear_are_refused(rows: Rows, says: str) -> None:
    text = refusal(rows)
    assert says in text and "--objective sft" in text
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.SFT)).objective == "sft"


def test_a_label_that_rates_nothing_is_named_as_not_used() -> None:
    found = meaning(many(messages=TALK, label=("algebra", "geometry")))
    assert (found.objective, found.unused) == ("sft", ("label",))


@pytest.mark.parametrize(
    "rows",
    [
        many(task=("Coding", "Logic"), chosen=answered("§?", "y"), rejected=answered("§?", "z")),
        many(user=WORDS, chosen="§ is this: yes", rejected="§ is this: no"),
        many(task="sort the words", chosen="§ is this: yes", rejected="§ is this: no"),
    ],
)
def test_categories_and_names_are_no_prompts(rows: Rows) -> None:
    assert meaning(rows).source["prompt_field"] is None


def test_a_task_that_differs_from_row_to_row_is_a_prompt() -> None:
    assert meaning(many(task="Tie § twice.", chosen="y", rejected="z")).source["prompt_field"] == "task"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"prompt": "sentiment", "answer": ("3", "4")}, "prompt"),
        ({"instruction": "Translate.", "output": "§"}, "instruction"),
        ({"question": "effect", "chosen": "§", "rejected": "z"}, "question"),
    ],
)
def test_prompts_that_are_the_same_in_most_rows_are_refused(row: dict[str, Any], key: str) -> None:
    rows = many(**row)
    assert f"the prompts under {key!r} are the same in 12 of the first 12 rows" in refusal(rows)
    assert meaning(rows, RecognitionOptions(prompt_field=key)).source["prompt_field"] == key


def test_the_same_question_about_other_texts_or_images_is_no_repetition() -> None:
    assert "context" in meaning(many(question="Who?", context="§ ran.", answer=("Ada", "Bo"))).source["prompt_template"]
    assert "input" in meaning(many(instruction="Translate.", input="§", output="o")).source["prompt_template"]
    assert meaning(many(question="How many?", image="a.png", answer=("3", "4"))).source["prompt_field"] == "question"


@pytest.mark.parametrize("key", ["history", "context", "conversation", "trajectory"])
def test_words_that_two_responses_begin_with_by_chance_are_no_prompt(key: str) -> None:
    rows = [{key: f"How do I tie {number}?", **pair} for number, pair in enumerate(many(**PAIR))]
    if key == "conversation":  # it is the prompt
        assert meaning(rows).source["prompt_field"] == key
        return
    text = refusal(rows)
    assert repr(key) in text and "--prompt-field" in text
    assert meaning(rows, RecognitionOptions(prompt_field=key)).source["prompt_field"] == key


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (PAIR, "the same words in many rows ('Sure, here is')"),
        ({"note": "§ was asked", "chosen": "§ y", "rejected": "§ z"}, "or under 'note'"),
        ({"trajectory": user("§ x?"), "chosen": "§ y", "rejected": "§ z"}, "or under 'trajectory'"),
        ({"chosen": answered("x?", "§ y"), "rejected": answered("x?", "z")}, "the same words in many rows"),
        ({"chosen": "§ apple", "rejected": "§ apple pie"}, "row 1: "),
        ({"chosen": "yes, §", "rejected": "yours, §"}, "row 1: "),
    ],
)
def test_a_common_beginning_that_is_no_prompt_is_refused(row: dict[str, Any], says: str) -> None:
    assert says in refusal(many(**row))


def test_a_prompt_in_both_responses_has_the_system_message_of_its_row() -> None:
    found = meaning(many(system="Be kind.", chosen=answered("§?", "y"), rejected=answered("§?", "z")))
    assert (found.source["system_field"], found.unused) == ("system", ())


def test_a_conversation_that_waits_for_the_assistant_is_the_prompt_of_a_pair() -> None:
    assert meaning(many(conversations=user("§ x?"), chosen="y", rejected="z")).source["prompt_field"] == "conversations"


TOOLS = [{"name": "add"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TALK, "label": (True, False), "tools": TOOLS},
        {"prompt": "§ x?", "completion": "y", "label": (True, False), "tools": TOOLS},
        {"prompt": "§ x?", "chosen": "y", "rejected": "z", "tools": TOOLS},
        {"prompt": "§ x?", "completion": "y", "tools": TOOLS},
        {"messages": TALK, "tools": TOOLS},
    ],
)
def test_tools_belong_to_the_prompts_of_all_that_is_learnt(row: dict[str, Any]) -> None:
    found = meaning(many(**row))
    assert (found.source["tools_field"], found.unused) == ("tools", ())
    assert "template shows none" in refusal(many(**row), model=Abilities())


@pytest.mark.parametrize("speaker", [{"role": "human", "content": "x"}, {"from": "prompter", "value": "x"}])
def test_speakers_that_no_run_knows_are_refused(speaker: dict[str, Any]) -> None:
    assert "row 1: 'messages' has a message of" in refusal(many(messages=[speaker, *TALK]))


@pytest.mark.parametrize(
    ("row", "answer", "asks"),
    [
        ({"options": {"A": "Aspirin §", "B": "b"}, "answer": "Aspirin §", "answer_idx": "A"}, "answer_idx", "letter"),
        ({"choices": ["x one", "y"], "answer": "x one", "answerKey": "A"}, "answerKey", "letter"),
        ({"options": {"A": "x", "B": "y"}, "answer": ("x", "y")}, "answer", "right choice"),
        ({"choices": ["x", "y", "z"], "answer": "because", "gold": (0, 2)}, "gold", "number"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": ("1", "2")}, "answerKey", "number"),
        ({"choices": {"text": ["x", "y"], "label": ["p", "q"]}, "answerKey": ("p", "q")}, "answerKey", "label"),
        ({"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answer": ("x", "y")}, "answer", "right choice"),
        ({"context": "c", "answer0": "x", "answer1": "y", "answer2": "z", "label": (0, 2)}, "label", "number"),
        ({"ending0": "x", "ending1": "y", "label": (0, 1)}, "label", "number"),
        ({"option1": "x", "option2": "y", "answer": (1, 2)}, "answer", "number"),
    ],
)
def test_a_prompt_with_choices_asks_for_what_is_compared(row: dict[str, Any], answer: str, asks: str) -> None:
    found = meaning(many(question="§ q", **row))
    template = found.source["prompt_template"]
    assert found.source["answer_field"] == answer
    assert f'End with a line "Answer: " and the {asks}' in template


@pytest.mark.parametrize(
    "texts", [["(A) 6", "(B) 7"], ["x + 1", "1 + x"], ["It ran away from the cat.", "It slept in."]]
)
def test_texts_of_choices_are_compared_as_they_are_shown(texts: list[str]) -> None:
    found = meaning(many(question="§ q", choices=texts, answer=tuple(texts)))
    assert found.reward is not None
    assert (found.reward.function, found.reward.reads) == ("exact_match", 'the text after "Answer:"')


def test_a_given_answer_says_what_choices_are_called() -> None:
    rows = many(question="§ q", choices=["x", "y", "z"], answer=("x", "z"), gold=(0, 2))
    assert "and the right choice" in meaning(rows).source["prompt_template"]
    given = meaning(rows, RecognitionOptions(answer_field="gold"))
    assert "number of the right choice" in given.source["prompt_template"]
    assert given.reward is not None and "numbers" in given.reward.reads


@pytest.mark.parametrize(
    "row",
    [
        {"options": {"A": "x", "B": "y"}, "answer": ("z", "x")},
        {"options": {"A": "x", "B": "y"}, "answer": (0, 1)},
        {"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answer": ("C", "A")},
        {"choices": ["0", "1", "2"], "answer": (0, 2)},
        {"A": "x", "B": "y", "answer": ("neither", "x")},
    ],
)
def test_answers_that_are_none_of_the_choices_are_refused(row: dict[str, Any]) -> None:
    assert "is right is not clear from" in refusal(many(question="§ q", **row))


def test_numbers_of_choices_that_the_question_shows_without_numbers_are_refused() -> None:
    rows = many(question="§, left or right?", choices=["left", "right"], answer=(0, 1))
    assert "is right is not clear from 'answer'" in refusal(rows)


def test_choices_of_a_demonstration_are_shown_and_nothing_is_asked() -> None:
    found = meaning(many(question="§ q", options={"A": "x", "B": "y"}, response="It is A, as §."))
    assert (found.objective, "Answer:" in found.source["prompt_template"]) == ("sft", False)
    assert "{{ letter }}. " in found.source["prompt_template"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "§, true?", "label": (0, 1)}, "name classes ('0', '1')"),
        ({"question": "Which is §?", "label": (0, 1, 2, 3)}, "name classes"),
        ({"prompt": "Is § good?", "target": ("joy", "anger")}, "name classes ('anger', 'joy')"),
        ({"question": "§?", "answer": (0, 1)}, "name classes"),
        ({"question": "Which is §?", "answer": ("A", "B")}, "letters of choices"),
        ({"text": "§ was a good film.", "label": (0, 1)}, "ask nothing"),
        ({"text": "§ sells rope.", "label": ("World", "Sports")}, "ask nothing"),
        ({"question": "§?", "sentence": "Rope § is wet.", "label": (0, 1)}, "about 'sentence'"),
        ({"question": "§?", "premise": "It rained.", "answer": ("3", "4")}, "about 'premise'"),
        ({"code": "def f(x): return x", "input": "f(§)", "output": "§"}, "about 'code'"),
        ({"instruction": "§?", "history": [["a", "b"]], "output": "o"}, "about 'history'"),
        ({"question": "§?", "answer": ("3", "4"), "is_correct": (True, False)}, "'is_correct' says which"),
    ],
)
def test_answers_that_no_prompt_asks_for_are_refused(row: dict[str, Any], says: str) -> None:
    assert says in refusal(many(**row))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Is § good (1) or bad (0)?", "label": (0, 1)},
        {"prompt": "Is § joy or anger?", "target": ("joy", "anger")},
        {"text": "Is § even?", "label": ("yes", "no")},
        {"question": "§?", "label": (3, 5, 9)},
        {"question": "§?", "text": "It says: §? Yes.", "answer": ("3", "4")},
    ],
)
def test_answers_that_prompts_ask_for_are_compared(row: dict[str, Any]) -> None:
    assert meaning(many(**row)).objective == "rl"


def test_an_option_that_names_the_answers_decides() -> None:
    for label in ((0, 1), ("joy", "anger")):
        rows = many(question="§, true?", label=label)
        assert meaning(rows, RecognitionOptions(answer_field="label")).source["answer_field"] == "label"
    rated = many(question="§?", answer=("3", "4"), is_correct=(True, False))
    found = meaning(rated, RecognitionOptions(answer_field="answer", objective=ObjectiveKind.RL))
    assert (found.objective, found.unused) == ("rl", ("is_correct",))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": user("§"), "reward_model": {"ground_truth": {"target": 45, "numbers": [44, 19, 35]}}},
        {"prompt": "§", "nums": [1, 2, 3], "target": 6},
        {"nums": [1, 2, 3], "target": 6},
    ],
)
def test_equations_are_refused_by_name(row: dict[str, Any]) -> None:
    text = refusal(many(**row))
    assert "equation" in text and "--reward FILE:FUNCTION" in text


def test_an_answer_that_is_a_part_of_something_else_is_none() -> None:
    truth = {"target": ("3", "4"), "tolerance": 0.5}
    text = refusal(many(prompt=user("§?"), reward_model={"ground_truth": truth}))
    assert "no reward can compare their answers" in text and "--answer-field reward_model.ground_truth.target" in text


def test_pairs_may_have_ratings_of_all_responses() -> None:
    rows = many(input="§ x?", generations=["y", "z"], rating=[2.0, 1.0], chosen="y", rejected="z")
    assert meaning(rows).objective == "dpo"
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.DPO)).source["prompt_field"] == "input"


def test_a_response_that_is_not_preferred_needs_the_one_that_is() -> None:
    rows = many(messages=TALK, rejected_response="z")
    assert "no preferred one; expected it under 'chosen'" in refusal(rows)
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.SFT)).unused == ("rejected_response",)


def test_texts_that_are_the_same_are_learnt_as_they_are() -> None:
    found = meaning(many(text="Rope.", content="Rope § is wet."))
    assert (found.objective, found.source["answer_field"], found.unused) == ("sft", "text", ("content",))


CHECK = "def check(candidate):\n    assert candidate([3, 3], 6) == [0, 1]\n"
LEETCODE = {
    "problem_description": "Return the indices of § that add up to the target.",
    "prompt": "import random\nfrom typing import *\ninf = float('inf')\n",
    "starter_code": "class Solution:\n    def twoSum(self, nums, target):\n        ",
    "test": CHECK,
    "entry_point": "Solution().twoSum",
    "input_output": [{"input": "nums = [3, 3], target = 6", "output": "[0, 1]"}],
}


def test_imports_are_no_task_and_run_before_the_program() -> None:
    found = meaning(many(**LEETCODE))
    assert found.reward is not None
    assert dict(found.reward.options) == {"tests": "test", "entry_point": "entry_point", "setup": "prompt"}
    assert "problem_description" in found.source["prompt_template"]
    assert "starter_code" in found.source["prompt_template"] and found.unused == ("input_output",)
    assert meaning(many(**LEETCODE, query="Solve § with twoSum.")).used[0] == "query"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "import random  # §\n", "test": CHECK, "entry_point": "f"}, "no key has more than code"),
        ({"problem": "Add up §.", "input_output": LEETCODE["input_output"]}, "name the arguments of a function"),
    ],
)
def test_programs_without_a_task_or_with_inputs_that_nothing_reads_are_refused(row: dict[str, Any], says: str) -> None:
    assert says in refusal(many(**row))
