"""Scores are read from whatever a judge writes: in linear time, and within bounds or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.judges.parts import generative
from tests.matrix import examples
from yatt_core.judges.parsing import answer_parser, parser_of
from yatt_core.spec.rewards.parsing import Number, Pattern, YesNo

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
PARSERS = [
    YesNo(yes=("yes", "right"), no=("no", "wrong")),
    YesNo(take="last"),
    Number(minimum=-3, maximum=10),
    Number(take="first"),
    Pattern(pattern=r"Score: (?P<score>\S+)", minimum=0, maximum=10),
]


@pytest.mark.parametrize(
    ("spec", "text", "score"),
    [
        (YesNo(), "Yes.", 1.0),
        (YesNo(), "NO", 0.0),
        (YesNo(), "yes, not no", 1.0),
        (YesNo(), "no idea, honestly", None),
        (YesNo(), "There is no error in it: yes", 1.0),
        (YesNo(), "No-one can tell", None),
        (YesNo(), "**No** (the sum is wrong)", 0.0),
        (YesNo(), "Yes \n\nThe sum is right", 1.0),
        (YesNo(take="last"), "I see no reason to doubt it. Yes!", 1.0),
        (YesNo(yes=("correct",), no=("incorrect",)), "The correct answer is 5. Incorrect.", 0.0),
        (YesNo(take="last"), "yes? no: no", 0.0),
        (YesNo(), "yesterday nobody", None),
        (YesNo(), "", None),
        (YesNo(yes=("fully right",), no=("right",)), "it is fully right", 1.0),
        (Number(maximum=10), "I give 3, no, 7.5.", 7.5),
        (Number(maximum=10, take="first"), "I give 3, no, 7.5", 3.0),
        (Number(minimum=-1), "-0.5", -0.5),
        (Number(), "score:.25", 0.25),
        (Number(), "2", None),
        (Number(), "1e-1", 0.1),
        (Number(), "1e999", None),
        (Number(), "nan", None),
        (Number(), "v1", None),
        (Number(), "\N{SUPERSCRIPT TWO}", None),
        (Number(maximum=10), "Score: 8/10", 8.0),
        (Number(maximum=10), "I give it 7 out of 10.", 7.0),
        (Number(maximum=10), "**6** / 10", 6.0),
        (Number(maximum=10), "9 out of a possible 10", 9.0),
        (Number(maximum=10), "8 of 10, since 3 of 4 facts are right", 8.0),
        (Number(maximum=10), "On a scale from 1 to 10: 4", 4.0),
        (Number(maximum=10), "4 on a scale of 1-10", 4.0),
        (Number(maximum=10), "10/10", 10.0),
        (Number(maximum=10), "Score: 3 points out of 10", 3.0),
        (Number(maximum=10), "3 stars (out of 10)", 3.0),
        (Number(maximum=10), "3 (max 10)", 3.0),
        (Number(maximum=10), "I give a score of 8", 8.0),
        (Number(maximum=5), "4/10", None),
        (Number(maximum=100), "80 %", 80.0),
        (Number(maximum=10), "5%", None),
        (Number(maximum=10), "7-8", None),
        (Number(maximum=10), "7,5", None),
        (Pattern(pattern=r"Score: (?P<score>[0-9.]+)", maximum=5), "Score: 4.5, Score: 1", 4.5),
        (Pattern(pattern=r"(?s).*Score: (?P<score>[0-9.]+)", maximum=5), "Score: 4.5\nScore: 1", 1.0),
        (Pattern(pattern=r"(?P<score>\w+)"), "high", None),
        (Pattern(pattern=r"Score: (?P<score>[0-9.]+)"), "none", None),
    ],
)
def test_what_is_read(spec, text, score):
    assert parser_of(spec)(text) == score


@given(TEXTS)
@settings(max_examples=examples(60), deadline=None)
def test_any_text_gives_a_score_within_bounds_or_none(text):
    for spec in PARSERS:
        score = parser_of(spec)(text)
        low, high = (0.0, 1.0) if isinstance(spec, YesNo) else (spec.minimum, spec.maximum)
        assert score is None or low <= score <= high
        assert parser_of(spec)(text) == score


@given(st.floats(-9.75, 9.75), TEXTS.filter(lambda text: not any(c.isalnum() for c in text)))
@settings(max_examples=examples(60), deadline=None)
def test_a_number_that_is_written_is_read(number, around):
    written = f"{number:.4f}"
    assert parser_of(Number(minimum=-10, maximum=10))(f"{around} {written} {around}") in (float(written), None)
    assert parser_of(Number(minimum=-10, maximum=10))(f"so: {written}!") == float(written)


@pytest.mark.parametrize("pattern", [r"(?P<score>(?:x+x+)+y)", r"(?P<score>(?:a|aa|a?)*b)"])
def test_a_pattern_that_would_backtrack_for_ever_does_not(pattern):
    assert parser_of(Pattern(pattern=pattern))("x" * 50_000 + "a" * 50_000) is None


def test_long_answers_are_read_in_linear_time():
    for spec in PARSERS:
        assert parser_of(spec)("1" * 100_000 + "e" * 100_000) is None


@pytest.mark.parametrize(
    ("kind", "given_values", "words"),
    [
        (Pattern, {"pattern": "[0-9]+"}, r"\(\?P<score>\.\.\.\)"),
        (Pattern, {"pattern": "(?P<score>[0-9]"}, "RE2"),
        (Pattern, {"pattern": r"(?P<score>\d)(?=x)"}, "RE2"),
        (Number, {"minimum": 1.0, "maximum": 1.0}, "not below"),
        (YesNo, {"yes": ["No"]}, "different words"),
        (YesNo, {"yes": ["yes "]}, "white space"),
        (YesNo, {"yes": []}, "at least 1"),
    ],
)
def test_what_could_never_be_read_is_refused(kind, given_values, words):
    with pytest.raises(ValidationError, match=words):
        kind(**given_values)


@pytest.mark.parametrize(
    ("parse", "limit", "text", "score"),
    [
        ({"kind": "number", "take": "first", "maximum": 10}, 16, "Score: 1", None),
        ({"kind": "number", "take": "first", "maximum": 10}, 16, "Score: 1, since", 1.0),
        ({"kind": "number", "maximum": 10}, 16, "Score: 1, since", None),
        ({"kind": "number"}, 16, "I give 0.", None),
        ({"kind": "number", "maximum": 9}, 1, "8", 8.0),
        ({"kind": "yes_no"}, 1, " Yes", 1.0),
        ({"kind": "yes_no"}, 16, "Yes, because the", 1.0),
        ({"kind": "yes_no", "take": "last"}, 16, "It is 4. Yes", None),
        ({"kind": "yes_no"}, 16, "<think>Yes, it seems", None),
        ({"kind": "pattern", "pattern": r"Score: (?P<score>[0-9]+)", "maximum": 10}, 16, "Score: 1", None),
        ({"kind": "pattern", "pattern": r"Score: (?P<score>[0-9]+)", "maximum": 10}, 16, "Score: 1 of 10", 1.0),
    ],
)
def test_an_answer_that_was_cut_has_a_score_if_the_rest_could_not_change_it(parse, limit, text, score):
    read = answer_parser(generative(parse=parse, max_new_tokens=limit))
    assert read(text, cut=True) == score
    assert read(text, cut=False) is not None or "<think>" in text or text.endswith("0.")


def test_a_critique_that_was_cut_names_no_steps():
    read = answer_parser(generative(template="{steps}", parse={"kind": "wrong_steps"}))
    assert read("[1, 2]", 3, cut=True) is None and read("[1, 2]", 3) == 2.0
