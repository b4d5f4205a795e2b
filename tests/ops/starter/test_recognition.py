"""What rows mean, and what is refused with what is missing: several inputs of each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ops.starter.recognition import answer_rewards
from ops.starter.recognition.answer_kinds import AnswerKind, kind_of
from ops.starter.recognition.recognised import Abilities, ObjectiveKind, RecognitionOptions
from tests.ops.starter.numbered_rows import Rows, many, meaning, refusal
from tests.ops.starter.sample_files import answered, user


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (["1", "-2.5", "1,200", " 7 "], AnswerKind.NUMBER),
        (["$3", "40%"], AnswerKind.NUMBER),
        (["A", "(B)", "C."], AnswerKind.LETTER),
        (["True", "false"], AnswerKind.BOOLEAN),
        (["Yes", "no"], AnswerKind.YES_NO),
        (["so 3.\n#### 3", "#### 1,000"], AnswerKind.AFTER_HASHES),
        ([r"Hence $\boxed{3}$.", r"It is \boxed{\frac{1}{2}} then."], AnswerKind.IN_BOX),
        ([r"\frac{1}{2}", "3", "x^2+1", r"\sqrt{2}"], AnswerKind.FORMULA),
        (["Paris", "New York"], AnswerKind.WORDS),
        (["2024-05-01", "2023-12-24"], AnswerKind.WORDS),
        (["It depends on what you mean by that.", "Paris"], AnswerKind.TEXT),
    ],
)
def test_kinds_of_answers(answers: list[str], kind: AnswerKind) -> None:
    assert kind_of(answers) is kind


@pytest.mark.parametrize(
    ("rows", "function", "options"),
    [
        (many(prompt="§ x?", answer=(3, 4)), "exact_match", {"extract": "last_number"}),
        (many(prompt="§ x?", answer=("1,000", "4")), "exact_match", {"extract_reference": "last_number"}),
        (many(prompt=r"§ Put it in \boxed{}.", answer="4"), "math_equal", {"extract": "boxed"}),
        (many(prompt="§ Write <answer>4</answer>.", answer="4"), "exact_match", {"extract": "tag"}),
        (many(prompt="§ End with Answer: X.", answer=r"\pi"), "math_equal", {"extract": "pattern"}),
        (many(prompt="§ True?", answer=(True, False)), "exact_match", {"case_sensitive": False}),
        (many(prompt="§ Which? A. x B. y", answer=("A", "B")), "exact_match", {"extract": "pattern"}),
        (many(prompt="§ Q: capital?\nAnswer:", answer="Paris"), "exact_match", {"case_sensitive": False}),
        (many(question="§ x?", answer="as 3.\n#### 3"), "exact_match", {"extract_reference": "last_number"}),
        (many(prompt="§ x?", golden_answers=["Ada", "Ada Bay"]), "exact_match", {"case_sensitive": False}),
    ],
)
def test_the_reward_follows_from_answers_and_prompts(rows: Rows, function: str, options: dict[str, Any]) -> None:
    reward = meaning(rows).reward
    assert reward is not None and reward.function == function
    assert {key: reward.options.get(key) for key in options} == options


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        (many(prompt=user("§ x?"), reward_model={"ground_truth": "3"}), "reward_model.ground_truth"),
        (many(prompt=user("§ x?"), reward_spec={"method": "rule", "ground_truth": 3}), "reward_spec.ground_truth"),
        (many(prompt=user("§ x?"), extra_info={"answer": "#### 3"}), "extra_info.answer"),
        (many(prompt=user("§ x?"), extra_info=json.dumps({"answer": "3"})), "extra_info.answer"),
        (
            many(prompt="§ x?", reward_model={"ground_truth": {"target": ["Ada", "Bo"]}}),
            "reward_model.ground_truth.target",
        ),
        (many(PROMPT="§ x?", ANSWER="3"), "ANSWER"),
        (many(**{" Prompt ": "§ x?", " Answer ": "3"}), " Answer "),
    ],
)
def test_answers_are_found_below_objects_and_in_any_spelling(rows: Rows, answer: str) -> None:
    assert meaning(rows).source["answer_field"] == answer


def test_the_other_keys_of_an_object_are_named() -> None:
    found = meaning(many(id=1, prompt="§ x?", reward_model={"style": "rule", "ground_truth": "3"}))
    assert found.unused == ("id", "reward_model.style")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (many(prompt="§ Tell a story."), "no reference answers"),
        (many(prompt="§ Why?", answer="Because of many things, in truth."), "free text"),
        (many(prompt="§ Why?", ground_truth="A long answer. " * 9), "free text"),
        (
            [*many(prompt="§ x?", answer="3"), {"prompt": "§ y?", "answer": None}],
            "1 of the first 13 rows have no answer",
        ),
        (many(problem="§ x?", answer=("3", "notfound")), "'notfound'"),
        ([*many(q="x", question="§ x?", answer="3"), {"question": "§ y?", "answer": "080 or 081 (both)"}], "but for"),
        (many(prompt="§ x?", answer={"value": 3}), "no reward can compare their answers"),
    ],
)
def test_a_reward_is_never_invented(rows: Rows, says: str) -> None:
    text = refusal(rows)
    assert says in text
    assert "--reward FILE:FUNCTION" in text or "leave" in text


def test_a_reward_of_ones_own_needs_no_answers() -> None:
    found = meaning(many(prompt="§ Tell a story."), RecognitionOptions(own_reward=True))
    assert (found.objective, found.reward, dict(found.source)) == ("rl", None, {"prompt_field": "prompt"})
    with_answers = meaning(many(prompt="§ Why?", answer="Because of many things."), RecognitionOptions(own_reward=True))
    assert with_answers.source["answer_field"] == "answer"


def test_math_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_rewards, "MATH_PACKAGE", "no_such_package_here")
    assert "pip install 'yatt[math]'" in refusal(many(prompt="§ x?", answer=r"\frac{1}{2}"))


@pytest.mark.parametrize(
    ("label", "says"),
    [((1, -1), "-1"), (("thumbs_up", "thumbs_down"), "thumbs"), ((4, 5), "4"), ((True, None), "None")],
)
def test_labels_of_responses_are_true_or_false(label: tuple[Any, Any], says: str) -> None:
    text = refusal(many(prompt="§ x?", completion="y", label=label))
    assert says in text and "expected true or false" in text


@pytest.mark.parametrize("label", [(True, False), (1, 0)])
def test_labelled_responses_are_unpaired_preferences(label: tuple[Any, Any]) -> None:
    found = meaning(many(prompt="§ x?", response="y", label=label))
    assert (found.objective, found.source["label_field"]) == ("kto", "label")


def test_a_number_under_label_is_an_answer_beside_a_prompt_alone() -> None:
    found = meaning(many(prompt="§ x?", label=(12, 144)))
    assert (found.objective, found.source["answer_field"]) == ("rl", "label")


@pytest.mark.parametrize(
    ("rows", "prompt"),
    [
        (many(prompt=user("§ x?"), chosen=answered("§ x?", "y")[1:], rejected=answered("§ x?", "z")[1:]), "prompt"),
        (many(chosen="§ x? yes", rejected="§ x? no"), None),
        (many(chosen=answered("§ x?", "y"), rejected=answered("§ x?", "z"), margin=2.0), None),
        (many(query="§ x?", chosen="y", rejected="z"), "query"),
    ],
)
def test_preferences_have_a_prompt_or_a_common_beginning(rows: Rows, prompt: str | None) -> None:
    found = meaning(rows)
    assert (found.objective, found.source["prompt_field"]) == ("dpo", prompt)
    assert "dialogue" not in found.source


def test_preferences_come_first_and_may_train_a_reward_model() -> None:
    rows = many(prompt="§ x?", chosen="y", rejected="z", answer="3", messages=answered("§ x?", "y"))
    assert meaning(rows).objective == "dpo"
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.REWARD_MODEL)).objective == "reward_model"
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.SFT)).source["prompt_field"] == "messages"
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.RL)).source["answer_field"] == "answer"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (many(chosen="yes", rejected="no"), "no beginning in common"),
        (many(prompt="§ x?", chosen={"from": "gpt", "value": "y"}, rejected={"from": "gpt", "value": "z"}), "no list"),
        (many(prompt="§ x?", chosen=user("§ y"), rejected=user("§ z")), "ends with the assistant's"),
        (many(prompt="§ x?", images=["a.png"], chosen="y", rejected="z"), "images"),
    ],
)
def test_preferences_of_other_forms_are_refused(rows: Rows, says: str) -> None:
    assert says in refusal(rows)


@pytest.mark.parametrize(
    ("rows", "source"),
    [
        (many(messages=json.dumps(answered("§ x?", "y"))), {"prompt_field": "messages"}),
        (
            many(prompt=user("§ x?"), completion=answered("§ x?", "y")[1:]),
            {"prompt_field": "prompt", "answer_field": "completion"},
        ),
        (many(question="§ x?", response="y"), {"prompt_field": "question", "answer_field": "response"}),
        (many(input="§ x?", output="y z"), {"prompt_field": "input", "answer_field": "output"}),
        (many(text="§ Once upon a time."), {"prompt_field": None, "answer_field": "text"}),
        (
            many(text="<|im_start|>user\n§ x<|im_end|>"),
            {"prompt_field": None, "answer_field": "text", "rendered": True},
        ),
        (
            many(conversations=[{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}], system="Be kind."),
            {"prompt_field": "conversations", "system_field": "system"},
        ),
        (
            many(messages=[{"role": "system", "content": "s"}, *answered("§ x", "y")], system="s"),
            {"prompt_field": "messages"},
        ),
        (
            many(messages=answered("§ x", "y"), tools=json.dumps([{"name": "f"}])),
            {"prompt_field": "messages", "tools_field": "tools"},
        ),
    ],
)
def test_demonstrations(rows: Rows, source: dict[str, Any]) -> None:
    found = meaning(rows)
    assert (found.objective, dict(found.source)) == ("sft", source)


def test_conversations_that_end_in_the_middle_are_refused() -> None:
    rows = [*many(messages=answered("§ x", "y")), {"messages": user("§ z")}]
    assert "row 13: 'messages' ends with a message of 'user'" in refusal(rows)


def test_rows_that_mean_two_things_are_refused_with_the_option_that_decides() -> None:
    rows = many(problem="§ x?", answer="3", messages=answered("§ x?", "y"))
    text = refusal(rows)
    assert "--objective rl" in text and "--objective sft" in text
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.RL)).source["answer_field"] == "answer"
    assert meaning(rows, RecognitionOptions(objective=ObjectiveKind.SFT)).source["prompt_field"] == "messages"


def test_a_rendered_prompt_is_taken_as_it_is_or_refused() -> None:
    own = many(prompt="<|im_start|>user\n§ x?<|im_end|>\n<|im_start|>assistant\n", answer="3")
    assert meaning(own).source["rendered"] is True
    assert "<start_of_turn>" in refusal(many(prompt="<start_of_turn>user\n§ x?<end_of_turn>", answer="3"))
    assert "rendered" not in meaning(many(prompt="§ Write <|im_end|> if x?", answer="3")).source


@pytest.mark.parametrize(
    ("rows", "template"),
    [
        (many(context="c", question="§ q", answer="3"), "{% if context %}{{ context }}\n\n{% endif %}{{ question }}"),
        (
            [*many(instruction="§ q", input="§ i", output="o"), {"instruction": "q", "output": "o"}],
            "{{ instruction }}{% if input is defined and input %}\n\n{{ input }}{% endif %}",
        ),
        (
            many(**{"the passage": "c", "passage": "p", "question": "§ q", "answer": "3"}),
            "{% if passage %}{{ passage }}\n\n{% endif %}{{ question }}",
        ),
    ],
)
def test_what_a_question_is_about_belongs_to_the_prompt(rows: Rows, template: str) -> None:
    assert meaning(rows).source["prompt_template"] == template


def test_a_question_about_something_that_is_no_text_is_refused() -> None:
    rows = many(question="§ q", context={"title": ["t"], "sentences": [["s"]]}, answer="yes")
    assert "'context', which is not text" in refusal(rows)
    assert meaning(rows, RecognitionOptions(prompt_field="question")).source["prompt_field"] == "question"


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        (many(question="§ q", choices=["x", "y", "z"], answer=(0, 2)), "{{ loop.index0 }}. "),
        (many(question="§ q", choices=["x", "y", "z"], answer=(1, 3)), "{{ loop.index }}. "),
        (many(question="§ q", options={"A": "x", "B": "y"}, answer="B"), "{{ letter }}. "),
        (many(question="§ q", options=["x", "y"], answer="B"), "'ABCDEFGHIJ'[loop.index0]"),
        (many(question="§ q", options=["left", "right"], answer="left"), "- {{ choice }}"),
        (many(question="§ q", opa="x", opb="y", opc="z", cop=(0, 2)), "0. {{ opa }}\n1. {{ opb }}\n2. {{ opc }}\n"),
        (many(**{"Q no": 1, "question": "§ q", "Option A": "x", "Option B": "y", "answer": "A"}), 'row["Option A"]'),
    ],
)
def test_choices_are_called_as_the_answers_call_them(rows: Rows, part: str) -> None:
    assert part in meaning(rows).source["prompt_template"]


def test_choices_that_are_shown_already_are_not_shown_twice() -> None:
    rows = many(question="§ Which, x1 or y2?\nA. x1\nB. y2", choices=["x1", "y2"], answer="B")
    assert meaning(rows).source["prompt_field"] == "question"


@pytest.mark.parametrize(
    "rows",
    [
        many(question="§ q", choices=["x", "y", "z"], answer=(1, 2)),
        many(question="§ q", choices=["x", "y"], answer="neither of them"),
        many(question="§ q", choices=[{"id": 1, "body": "x"}], answer="A"),
    ],
)
def test_choices_without_a_clear_answer_are_refused(rows: Rows) -> None:
    assert "choices" in refusal(rows)


def test_images_and_tools_need_a_model_that_has_them() -> None:
    images = many(image="a.png", question="§ q", answer="3")
    assert meaning(images).source["image_field"] == "image"
    assert "vision tower" in refusal(images, model=Abilities())
    tools = many(messages=answered("§ x", "y"), tools=[{"name": "f"}])
    assert "template shows none" in refusal(tools, model=Abilities())
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    calling = many(messages=[*user("§ x"), call, {"role": "tool", "content": "1"}, *answered("§ x", "y")[1:]])
    assert meaning(calling).objective == "sft"
    assert "does not write them" in refusal(calling, model=Abilities(tools=True))


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (many(problem="§ p", tests=[{"input": "1", "output": "2"}]), {"tests": "tests"}),
        (many(question="§ p", input_output='{"inputs": ["1"], "outputs": ["2"]}'), {"tests": "input_output"}),
        (
            many(prompt=user("§ p"), reward_model={"ground_truth": '{"inputs": ["1"], "outputs": ["2"]}'}),
            {"tests": "reward_model.ground_truth"},
        ),
        (many(prompt="§ p", extra_info={"tests": ["assert f() == 1"]}), {"tests": "extra_info.tests"}),
        (
            many(prompt="§ write f", test_list=["assert f() == 1"], test_imports=["import math"]),
            {"tests": "test_list", "setup": "test_imports"},
        ),
        (
            many(prompt="§ def f():\n", test="def check(c):\n    assert c() == 1", entry_point="f"),
            {"tests": "test", "entry_point": "entry_point", "prefix": "prompt"},
        ),
    ],
)
def test_programs_with_tests(rows: Rows, options: dict[str, str]) -> None:
    reward = meaning(rows).reward
    assert reward is not None and (reward.function, dict(reward.options)) == ("code_tests", options)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (many(prompt="§ p", test="def check(c):\n    assert c() == 1"), "entry_point"),
        (many(prompt="§ p", test="def test_f():\n    assert f() == 1"), "tests something"),
        (many(prompt="§ p", tests={"inputs": ["1", "2"], "outputs": ["2"]}), "2 inputs and 1 outputs"),
        (many(input_ids=[1, 2, 3], labels=[1, 2, 3]), "token ids"),
        (many(nums=[1, 2, 3], goal=6), "no shape that is known"),
        (many(premise="a", hypothesis="b"), "'premise' (text), 'hypothesis' (text)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_is_missing(rows: Rows, says: str) -> None:
    assert says in refusal(rows)


def test_given_keys_take_the_place_of_the_usual_ones() -> None:
    rows = many(prompt="§ x?", wanted="3", other="s")
    assert dict(meaning(rows, RecognitionOptions(answer_field="wanted")).source) == {
        "prompt_field": "prompt",
        "answer_field": "wanted",
    }
    assert meaning(rows, RecognitionOptions("other", "wanted")).source["prompt_field"] == "other"
    assert "--answer-field want: no row has this key" in refusal(rows, RecognitionOptions(answer_field="want"))
