"""Answers are found as people and models write them, in the final text, and compared with each right answer."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.rewards import scored
from tests.rewards.scored import part, totals
from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.thoughts import Marks
from yatt_core.rewards.builtin import ExactMatch, Format, exact_match, format_match
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.extraction import boxed, with_plain_boxes
from yatt_core.rewards.functions import load_part
from yatt_core.rewards.mathematics import MathEqual, check_row, math_equal
from yatt_core.rewards.written_numbers import (
    DASHES,
    last_number,
    number_alone,
    numeral,
    same_number,
    with_plain_numbers,
)

SECONDS = 3.0
"""Far more than any of these calls takes, far less than one of quadratic time would."""


def prompt(answer, *others):
    return Prompt(0, 0, "p", "?", answer, {}, other_answers=others)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("\u22123", "-3"),
        ("x = \u20137.5.", "-7.5"),
        ("from 10\u201312", "12"),
        ("8-5", "5"),
        ("(x+1)-5", "5"),
        ("a top-5 list", "5"),
        ("**-5**", "-5"),
        ("-$18", "-18"),
        (r"\$1,234.50", "1234.50"),
        ("€ 7", "7"),
        ("8{,}000", "8000"),
        (r"12\,345\,678", "12345678"),
        (r"1,\!000", "1000"),
        ("1\u2009234\u2009567", "1234567"),
        ("1\u202f234", "1234"),
        ("1,2,3", "3"),
        ("2.5e-3", "2.5e-3"),
        ("6e+23", "6e23"),
        ("3e5x", "5"),
        ("It is 1e5.", "1e5"),
        ("2.5e-3. So", "2.5e-3"),
        ("1e5.5", "5.5"),
        (".5", ".5"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(f"It is {text}") == number
    assert last_number(f"1 and then {text} and so on") == (number or "1")


VALUES = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12)


@given(VALUES, st.sampled_from(DASHES), st.sampled_from(["", ",", "{,}", r"\,", "\u2009", "\u202f"]), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_number_is_the_same_however_it_is_written(value, dash, separator, currency):
    digits = f"{abs(value):,.3f}".replace(",", separator)
    written = f"{dash if value < 0 else ''}{'$' if currency else ''}{digits}"
    assert number_alone(written) == (value, False)
    assert Decimal(last_number(f"So it is {written}.")) == value
    assert same_number(written, str(value))
    assert number_alone(with_plain_numbers(written)) == (value, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1011_2", (11, 2)),
        (" (1011)_{2} ", (11, 2)),
        ("4A_{16}", (74, 16)),
        ("a_{16}", None),
        ("x_2", None),
        ("19_8", None),
        ("12_1", None),
        ("12_0", None),
        ("(12_8", None),
        ("12_{8", None),
        ("1011", None),
    ],
)
def test_a_numeral_has_a_base_and_digits_of_it(text, value):
    assert numeral(text) == value


@given(st.text(alphabet="0123456789.,-+eE$%\\{} !\u2212\u2009abc", max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_has_a_last_number_that_is_one_or_none(text):
    found = last_number(text)
    assert (found is None) == (not any(letter.isdigit() for letter in text))
    if found is not None:
        assert number_alone(found) is not None and last_number(found) == found


HOSTILE = [
    "9" * 1_000_000, "1,000" * 200_000, "1e" * 500_000, "1e" + "9" * 1_000_000 + "x", "-" * 1_000_000, "$" * 1_000_000,
    "1{,}000" * 140_000, r"\boxed " * 150_000, r"\fbox{" * 160_000, r"\boxed5" * 150_000, "<think>" * 140_000,
    "</think>" * 125_000, "." * 1_000_000, r"1\,000," * 140_000 + "0000", "e+" * 500_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_policy_wrote_is_read_in_linear_time(text):
    started = time.process_time()
    for function in (last_number, number_alone, with_plain_numbers, boxed, with_plain_boxes):
        function(text)
    for extract in ("last_number", "boxed", "tag"):
        exact_match(prompt("7"), text, ExactMatch(extract=extract))
    assert time.process_time() - started < SECONDS * 3


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\fbox{42}", "42"),
        (r"\fbox{$42$}", "42"),
        (r"\boxed 5", "5"),
        (r"\boxed 12.5, then", "12.5"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed{7}, as I \boxed.", "7"),
        (r"\boxed{1}, no, \fbox{2}", "2"),
        (r"\boxedness{3}", None),
        (r"\boxed{\fbox{3}}", "3"),
        (r"\boxed{3", None),
    ],
)
def test_boxes_as_tex_allows_them(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("18.0", "18 dollars", True),
        ("1,234", "It is 1234.", True),
        ("$18", "It costs $18.00.", True),
        ("50%", "50 %", True),
        ("-3", "It is \u22123.", True),
        ("3", "It is \u22123.", False),
        ("18", "18.5", False),
    ],
)
def test_last_numbers_are_compared_as_numbers(reference, response, right):
    assert exact_match(prompt(reference), response, ExactMatch(extract="last_number")) == float(right)


def test_each_of_several_right_answers_counts():
    row = prompt("Paris", "the city of Paris")
    assert [exact_match(row, text, ExactMatch()) for text in ("Paris", "the city of Paris", "Rome")] == [1, 1, 0]
    row = prompt(r"\frac{1}{2}", "2")
    said = [rf"\boxed{{{text}}}" for text in ("0.5", "2", "3")]
    assert [math_equal(row, text, MathEqual(extract="boxed")) for text in said] == [1, 1, 0]
    with pytest.raises(DataError, match="has no tag: 'b'"):
        exact_match(prompt("<answer>a</answer>", "b"), "a", ExactMatch(extract_reference="tag"))


def test_further_right_answers_reach_the_reward_process(monkeypatch):
    monkeypatch.setattr(scored, "PROMPT", prompt("1/3", "7"))
    assert totals("math_equal", r"\boxed{7}", r"\boxed{8}", options={"extract": "boxed"}) == [1, 0]


@pytest.mark.parametrize("reference", ["true", "True", "FALSE"])
def test_the_case_of_a_truth_value_does_not_count(reference):
    for said in (reference.lower(), reference.upper(), reference.title()):
        assert exact_match(prompt(reference), said, ExactMatch()) == 1.0
        assert math_equal(prompt(reference), rf"\boxed{{\text{{{said}}}}}", MathEqual(extract="boxed")) == 1.0
        assert math_equal(prompt(reference), rf"So \boxed{{{said}}}", MathEqual()) == 1.0
    assert exact_match(prompt(reference), "maybe", ExactMatch()) == 0.0
    assert exact_match(prompt("Paris"), "paris", ExactMatch()) == 0.0


@pytest.mark.parametrize(
    ("reference", "said", "right"),
    [
        ("18", r"\$18", True),
        ("8000", "8{,}000", True),
        ("8000", "8\u2009000", True),
        (r"8\,000", "8000", True),
        ("-3", "\u22123", True),
        ("1/3", "0.333333", True),
        ("1/3", "0.34", False),
        ("2e-7", "0.0000002", True),
        ("1e5.", "100000", True),
        ("0.0000002", "0.0000001", False),
        ("0", "0.0000001", False),
        (r"\frac{1}{2^{80}}", r"\frac{1}{2^{81}}", False),
        (r"\{0.0000001, 1\}", r"\{0.0000002, 1\}", False),
        (r"\sqrt{\frac{1}{n}}", r"\frac{1}{\sqrt{n}}", True),
        (r"\log(1/n)", r"-\log(n)", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\sqrt{x}", r"\sqrt{x+1}", False),
        ("7:45 AM", r"7:45 \text{ AM}", True),
        ("7:45 AM", r"7:45 \text{ PM}", False),
        ("12", "1 2", False),
        ("No solution", r"\text{no solution}", True),
    ],
)
def test_mathematics_as_people_write_it(reference, said, right):
    assert math_equal(prompt(reference), rf"So \boxed{{{said}}}", MathEqual(extract="boxed")) == float(right)


@pytest.mark.parametrize(
    ("reference", "said"), [("100000", "1e5"), ("0.00012", "1.2e-4"), ("6e23", "6e+23"), ("-5", "-5.0e0")]
)
@pytest.mark.parametrize("text", [r"\boxed{%s}", r"So $x = \boxed{%s}$.", "%s", "%s."])
def test_numbers_with_exponents_are_equal_wherever_they_stand(reference, said, text):
    whole = MathEqual(extract="whole")
    assert math_equal(prompt(reference), text % said, whole) == 1.0
    assert math_equal(prompt("7"), text % said, whole) == 0.0


@pytest.mark.parametrize(
    "ending", [r"\boxed{42}", r"\fbox{42}", r"\boxed 42", "so it is $42$", "The answer is 42.", "42"]
)
@pytest.mark.parametrize("filler", ["Let me think about 7 and $x = 3$.\n", "word 7 ", r"Perhaps \boxed{7}? "])
def test_a_long_response_is_read_from_its_end(filler, ending):
    for length in (3_000, 11_000, 300_000):
        text = filler * (length // len(filler)) + "\n" + ending
        if "boxed" in filler and "box" not in ending:
            continue  # a box counts before a plain number
        assert math_equal(prompt("42"), text, MathEqual()) == 1.0, length
        assert math_equal(prompt("43"), text, MathEqual()) == 0.0, length


def test_references_are_read_before_they_are_drawn():
    assert check_row(prompt(r"\frac{1}{2}", "7"), "", MathEqual()) == 0.0
    for row in (prompt("}{"), prompt("1", "}{")):
        with pytest.raises(DataError, match="not a mathematical expression"):
            check_row(row, "", MathEqual())


THOUGHT = r"<think>\boxed{1} <answer>1</answer> 1</think>"


@pytest.mark.parametrize("function", [exact_match, math_equal])
@pytest.mark.parametrize("extract", ["boxed", "tag", "whole"])
def test_an_answer_in_thoughts_does_not_count_unless_it_may(function, extract):
    model = ExactMatch if function is exact_match else MathEqual
    unfinished = THOUGHT.removesuffix("</think>")
    for said, found in ((f"{THOUGHT} I do not know.", 0.0), (unfinished, 0.0)):
        assert function(prompt("1"), said, model(extract=extract)) == found
    if extract != "whole":
        assert function(prompt("1"), unfinished, model(extract=extract, with_thoughts=True)) == 1.0
        assert function(prompt("2"), rf"{THOUGHT} \boxed{{2}} <answer>2</answer>", model(extract=extract)) == 1.0
    else:
        assert function(prompt("2"), f"{THOUGHT} 2", model()) == 1.0
        assert function(prompt(f"{THOUGHT} 2"), "2", ExactMatch()) == 1.0 if function is exact_match else True


@pytest.mark.parametrize("name", ["exact_match", "math_equal"])
def test_thoughts_have_the_marks_of_the_run(monkeypatch, name):
    monkeypatch.setattr(scored, "PROMPT", prompt("2"))
    marks = Marks("<|channel>thought\n", "<channel|>")
    text = rf"{marks.begin}\boxed{{2}}{marks.end}\boxed{{3}}"
    outcomes = []
    for said in (text, text.replace("3", "2"), text.removesuffix(r"<channel|>\boxed{3}")):
        completion = Completion.of_turns(said, [said], 3, reading=Reading(marks, ""))
        ((one,),) = load_part(part(name, options={"extract": "boxed"})).evaluate(
            [[Candidate(scored.PROMPT, completion)]]
        )
        outcomes.append(one.value)
    assert outcomes == [0.0, 1.0, 0.0]


def test_json_is_read_after_the_thoughts():
    options = {"schema": {"type": "object", "required": ["a"]}}
    said = ['<think>{"a": 1}</think>{"b": 1}', '<think>{"b": 1}</think>{"a": 1}', '{"a": 1}']
    assert totals("json_schema", *said, options=options) == [0, 1, 1]


@pytest.mark.parametrize(
    ("said", "prefill", "score"),
    [
        ("a</think><answer>b</answer>", None, 1.0),
        ("a</think><answer>b</answer>", "", 0.0),
        ("<think>\na</think><answer>b</answer>", "<think>\n", 1.0),
        ("<think>a</think><answer>b</answer>", None, 1.0),
        ("<think><think>a</think><answer>b</answer>", None, 0.0),
        ("<answer>b</answer>", None, 0.0),
        ("a</think>b", None, 0.0),
        ("x<think>a</think><answer>b</answer>", None, 0.0),
    ],
)
def test_a_tag_that_the_template_may_have_written_counts(said, prefill, score):
    assert format_match(prompt("b"), said, Format(tags=("think", "answer")), prefill) == score
    completion = Completion.of_turns(said, [said], 3, reading=Reading(prefill=prefill))
    options = {"tags": ["think", "answer"]}
    ((one,),) = load_part(part("format", options=options)).evaluate([[Candidate(prompt("b"), completion)]])
    assert one.value == score
