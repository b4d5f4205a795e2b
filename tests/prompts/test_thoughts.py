"""What a model wrote is divided into thoughts and final text, whatever it wrote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.prompts.prompt import Completion
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.steps import StepText, TokenSteps, split_steps
from yatt_core.prompts.thoughts import THINK, Marks, final_spans, split_thoughts
from yatt_core.spec.rewards.steps import Lines

CHANNELS = Marks("<|channel|>analysis<|message|>", "<|end|>")
PIECES = st.sampled_from(["<think>", "</think>", "a", " ", "\n", "4", "<|channel|>analysis<|message|>", "<|end|>"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS)
@settings(max_examples=examples(300), deadline=None)
def test_the_spans_of_the_final_text_are_the_final_text(text):
    for marks in (THINK, CHANNELS):
        spans = final_spans(text, marks)
        assert "".join(text[start:stop] for start, stop in spans) == split_thoughts(text, marks).final
        assert all(start < stop for start, stop in spans)


@pytest.mark.parametrize(
    ("text", "marks", "thoughts", "final"),
    [
        ("<think>a</think>4", THINK, "a", "4"),
        ("a</think>4", THINK, "a", "4"),
        ("<think>a", THINK, "a", ""),
        ("4", THINK, "", "4"),
        ("<|channel|>analysis<|message|>a<|end|>4", CHANNELS, "a", "4"),
    ],
)
def test_a_response_has_thoughts_and_a_final_text(text, marks, thoughts, final):
    found = Completion.of_turns(f"call<tool_result>r</tool_result>{text}", ["call", text], 3, reading=Reading(marks))
    assert (found.thoughts, found.final) == (thoughts, final)
    assert (found.read("final"), found.read("last_turn"), found.read("response")) == (final, text, found.text)


@pytest.mark.parametrize(
    ("text", "prefill", "expected"),
    [
        ("<think>\na\n</think>\n1\n2", "<think>\n", [-1, -1, -1, 0, 0, 0, 1]),
        ("<think>\na\n</think>\n1\n2", "", [-1, -1, -1, -1, -1, 0, 0, 0, 1]),
        ("1\n2", "", [0, 0, 1]),
        ("<think>\na", "<think>\n", [-1]),
        ("1\n<think>a</think>2", "", [0, 0, -1, -1, -1, 1]),
    ],
)
def test_tokens_of_thoughts_belong_to_no_step(text, prefill, expected):
    words = ["<think>", "</think>", "\n", "a", "1", "2"]

    def decode(tokens):
        return "".join(words[token] for token in tokens.tolist())

    tokens = []
    rest = text[len(prefill) :]
    while rest:
        word = next(word for word in words if rest.startswith(word))
        tokens.append(words.index(word))
        rest = rest[len(word) :]
    spans = final_spans(text)
    steps = split_steps("".join(text[start:stop] for start, stop in spans), Lines())
    found = TokenSteps(decode).find(np.array(tokens, np.int32), steps, StepText(text, spans, len(prefill)))
    assert found.tolist() == expected
