"""How several judgements are combined into a score, and the effect of a failed judgement."""

from __future__ import annotations

import pickle

import pytest

from tests.judges.parts import generative
from yatt_core.protocols.judges import CUT, UNPARSED, Judgement, PartValue, Verdict, aggregate


def verdict(*scores, error=""):
    return Verdict(3, tuple(Judgement("text", score, 2, 9) for score in scores), error)


@pytest.mark.parametrize(
    ("how", "scores", "value"),
    [
        ("mean", (1.0, 0.0, 0.0, 1.0), 0.5),
        ("mean", (0.1,) * 10, 0.1),
        ("median", (0.0, 0.2, 1.0), 0.2),
        ("min", (0.3, 0.2, 1.0), 0.2),
        ("max", (0.3, 0.2, 1.0), 1.0),
        ("vote", (1.0, 0.0, 1.0), 1.0),
        ("vote", (1.0, 0.0), 0.0),
        ("vote", (0.0, 1.0), 0.0),
        ("vote", (0.5, 1.0, 0.5, 1.0, 0.0), 0.5),
    ],
)
def test_several_judgements_come_to_one_value(how, scores, value):
    part = generative(judgements=2, aggregate=how)
    assert aggregate(part, verdict(*scores)) == PartValue(value)


def test_one_that_cannot_be_parsed_does_not_count_or_is_zero_or_an_error():
    assert aggregate(generative(), verdict(1.0, None)) == PartValue(1.0)
    assert aggregate(generative(on_unparsed="zero"), verdict(1.0, None)) == PartValue(0.5)
    failed = aggregate(generative(on_unparsed="error"), verdict(1.0, None))
    assert failed == PartValue(0.0, "data: judgement 2 of 2 could not be parsed: 'text'", UNPARSED)


@pytest.mark.parametrize(("cut", "cause"), [(False, UNPARSED), (True, CUT)])
def test_without_any_score_there_is_no_value(cut, cause):
    said = Verdict(3, tuple(Judgement("Score: 1", None, 2, 9, cut) for _ in range(2)))
    found = aggregate(generative(judgements=2), said)
    assert (found.absent, found.cause, found.value) == (True, cause, 0.0)
    assert "'Score: 1'" in found.reason


def test_a_judge_that_failed_says_why():
    assert aggregate(generative(), verdict(error="data: too long")) == PartValue(0.0, "data: too long", "data")
    assert aggregate(generative(), verdict()).reason


def test_a_verdict_travels():
    said = verdict(1.0, None)
    assert pickle.loads(pickle.dumps(said)) == said
