"""How several judgements are combined into a score, and the effect of a failed judgement."""

from __future__ import annotations

import pickle

import pytest

from tests.judges.parts import generative
from yatt_core.protocols.judges import Judgement, Verdict, aggregate


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
    assert aggregate(part, verdict(*scores)) == (value, "")


def test_one_that_cannot_be_parsed_counts_as_zero_or_as_an_error():
    assert aggregate(generative(), verdict(1.0, None)) == (0.5, "")
    value, reason = aggregate(generative(on_unparsed="error"), verdict(1.0, None))
    assert (value, reason) == (0.0, "data: judgement 2 of 2 could not be parsed: 'text'")


def test_a_judge_that_failed_says_why():
    assert aggregate(generative(), verdict(error="data: too long")) == (0.0, "data: too long")
    assert aggregate(generative(), verdict())[1]


def test_a_verdict_travels():
    said = verdict(1.0, None)
    assert pickle.loads(pickle.dumps(said)) == said
