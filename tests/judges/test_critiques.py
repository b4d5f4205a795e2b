"""Which steps a judge calls wrong is read strictly, in linear time, from whatever it writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.judges.parts import generative
from tests.matrix import examples
from yatt_core.judges.critiques import wrong_steps_in
from yatt_core.judges.parsing import parser_of
from yatt_core.judges.template import filled_text
from yatt_core.judges.virtual import VirtualJudgeEngine
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.parsing import WrongSteps

STEPS = ("1 + 1 = 2\n", "2 + {answer} = [9]\n\n", " so 5")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("[2, 5]", {2, 5}),
        ("[]", set()),
        ("[ ]", set()),
        ("[1]", {1}),
        ("[ 5 ,\n2 ]", {2, 5}),
        ("[2, 2]", {2}),
        ("Step 2 is off [see 3]. So: [2]", {2}),
        ("not [1], but [3]", {3}),
        ("[[4]]", {4}),
        ("[02]", {2}),
        ("", None),
        ("none", None),
        ("2, 5", None),
        ("[2, 5", None),
        ("[2; 5]", None),
        ("[2,]", None),
        ("[,2]", None),
        ("[2 5]", None),
        ("[1-3]", None),
        ("[2.0]", None),
        ("[-1]", None),
        ("[+1]", None),
        ("[0]", None),
        ("[6]", None),
        ("[2, 6]", None),
        ("[1] [all]", None),
        ("[\N{SUPERSCRIPT TWO}]", None),
        ("[\N{ARABIC-INDIC DIGIT TWO}]", None),
        ("[" + "9" * 5000 + "]", None),
        ("[1e0]", None),
        ("[true]", None),
        ("[null]", None),
        ("[__import__('os')]", None),
    ],
)
def test_what_is_read(answer, wrong):
    assert wrong_steps_in(answer, 5) == (None if wrong is None else frozenset(wrong))


@given(st.text(st.sampled_from("[],0123456789 \n-x"), max_size=60), st.integers(1, 12))
@settings(max_examples=examples(300), deadline=None)
def test_any_answer_names_steps_or_nothing(answer, steps):
    found = wrong_steps_in(answer, steps)
    assert found is None or all(1 <= number <= steps for number in found)


@given(st.frozensets(st.integers(1, 12)), st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_a_list_at_the_end_is_read_whatever_precedes_it(wrong, before):
    assert wrong_steps_in(f"{before}{sorted(wrong)}", 12) == wrong


def test_long_answers_are_read_in_linear_time():
    for answer in (
        "[" * 300_000,
        "[1," * 100_000,
        "[" + "1," * 150_000 + "]",
        "[" + " " * 300_000 + "x]",
        "[]" * 150_000,
    ):
        assert wrong_steps_in(answer, 3) in (None, frozenset())
    assert wrong_steps_in("[" + "1, " * 100_000 + "1]", 3) == {1}


def test_the_steps_are_shown_with_their_numbers_and_as_text():
    item = JudgeItem(0, "question", "".join(STEPS), "5", (1, 2), STEPS)
    shown = filled_text("{prompt}\n{steps}\nWrong:", item)
    assert shown == "question\n[1] 1 + 1 = 2\n[2] 2 + {answer} = [9]\n[3] so 5\nWrong:"


def test_the_score_of_a_critique_is_the_number_of_wrong_steps():
    read = parser_of(WrongSteps())
    assert [read(text, 3) for text in ("[]", "[3, 1]", "[4]", "none")] == [0.0, 2.0, None, None]


def test_a_virtual_critique_is_a_function_of_its_item():
    part = generative(template="{steps}", parse={"kind": "wrong_steps"}, judgements=2)
    judge = VirtualJudgeEngine(part, part.engine)
    said = [judge.verdict(JudgeItem(0, "p", "r", None, (seed, seed + 1), STEPS)) for seed in range(20)]
    assert said == [judge.verdict(JudgeItem(0, "p", "r", None, (seed, seed + 1), STEPS)) for seed in range(20)]
    found = [wrong_steps_in(one.answer, len(STEPS)) for verdict in said for one in verdict.judgements]
    assert None not in found and len(set(found)) > 4
    assert [one.score for verdict in said for one in verdict.judgements] == [len(wrong or ()) for wrong in found]
