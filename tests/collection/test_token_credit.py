"""Rewards of tokens where a response has thoughts: its steps are those of the final text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from yatt_core.collection.token_credit import token_reward_column
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.thoughts import THINK, Marks
from yatt_core.rewards.scoring import SampleScore
from yatt_core.spec.rewards.critique import CritiqueSpec
from yatt_core.wire.columns import list_array

WORDS = ["<think>", "</think>", "a", "1\n", "2\n", "3", "<t>", "</t>"]


def decode(tokens):
    return "".join(WORDS[token] for token in tokens.tolist())


def rewards(words, wrong, prefill="", marks=THINK, **critique):
    tokens = np.array([WORDS.index(word) for word in words], np.int32)
    text = prefill + decode(tokens)
    offsets = np.array([0, len(tokens)])
    table = pa.table({"response": [text], "response_tokens": list_array(tokens, offsets)})
    spec = CritiqueSpec.model_validate({"part": "p", "steps": {"kind": "lines"}, **critique})
    score = SampleScore({}, 1.0, True, wrong_steps=tuple(wrong))
    return token_reward_column(spec, table, [score], decode, Reading(marks, prefill))[0].as_py()


@pytest.mark.parametrize(
    ("words", "prefill", "marks", "expected"),
    [
        (["<think>", "a", "</think>", "1\n", "2\n", "3"], "", THINK, [2, 2, 2, 2, 1, 2]),
        (["a", "</think>", "1\n", "2\n", "3"], "<think>", THINK, [2, 2, 2, 1, 2]),
        (["<t>", "a", "</t>", "1\n", "2\n", "3"], "", Marks("<t>", "</t>"), [2, 2, 2, 2, 1, 2]),
        (["1\n", "2\n", "3"], "", THINK, [2, 1, 2]),
    ],
)
def test_a_wrong_step_costs_its_own_tokens_and_not_those_of_thoughts(words, prefill, marks, expected):
    assert rewards(words, [0.0, 1.0, 0.0], prefill, marks) == expected


def test_thoughts_that_do_not_end_have_the_reward_of_the_outcome():
    assert rewards(["<think>", "1\n", "2\n"], [1.0]) == [2, 2, 2]


def test_thoughts_are_steps_if_all_is_read():
    assert rewards(["<think>", "1\n", "</think>", "3"], [1.0, 0.0], reads="response") == [1, 1, 2, 2]
    assert rewards(["1\n", "</think>", "3"], [1.0, 0.0], "<think>", reads="response") == [1, 2, 2]
