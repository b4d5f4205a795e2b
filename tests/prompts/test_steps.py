"""Steps of a response: together they are its text, and each of its tokens belongs to exactly one of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.matrix import examples
from yatt_core.prompts.steps import TokenSteps, split_steps
from yatt_core.spec.rewards.steps import BlankLines, Lines, Marker

SPLITS = [BlankLines(), Lines(), Marker(), Marker(pattern="[0-9]")]
TEXTS = st.lists(
    st.sampled_from(
        ["a", "é", "\N{GRINNING FACE}", "7", " ", "\n", "\n\n", "\t", "\r\n", "Step 1", "\nStep 12: ", "\x1e"]
    )
    | st.characters(exclude_categories=("Cs",)),
    max_size=30,
).map("".join)


@pytest.mark.parametrize(
    ("split", "text", "steps"),
    [
        (BlankLines(), "", [""]),
        (BlankLines(), "one\ntwo", ["one\ntwo"]),
        (BlankLines(), "one\n\ntwo\n \t\n\n three\n", ["one\n\n", "two\n \t\n\n", " three\n"]),
        (BlankLines(), "\n\none\n\n", ["\n\none\n\n"]),
        (Lines(), "1\n2\n\n3", ["1\n", "2\n\n", "3"]),
        (Lines(), " \n 1", [" \n 1"]),
        (Lines(), "\n\n", ["\n\n"]),
        (Marker(), "So.\nStep 1: a\nb\n  step 2 c", ["So.\n", "Step 1: a\nb\n", "  step 2 c"]),
        (Marker(), "Step 1 and Step 2", ["Step 1 and Step 2"]),
        (Marker(pattern="(a)(b)?"), "xabyaz", ["x", "aby", "az"]),
        (Marker(pattern="a"), "b\x1ea\x1ea", ["b\x1e", "a\x1e", "a"]),
    ],
)
def test_where_a_text_is_cut(split, text, steps):
    assert list(split_steps(text, split)) == steps


@given(TEXTS)
@settings(max_examples=examples(150), deadline=None)
def test_steps_are_the_text_and_none_of_several_is_blank(text):
    for split in SPLITS:
        steps = split_steps(text, split)
        assert "".join(steps) == text and steps
        assert len(steps) == 1 or all(step.strip() for step in steps[1:])


def test_hostile_texts_are_cut_in_linear_time():
    for text in ("\n" * 30_000, "a\n\n" * 10_000, " \n" * 15_000, "Step 1\n" * 5_000, "\x1e" * 30_000):
        for split in SPLITS:
            assert "".join(split_steps(text, split)) == text


@pytest.fixture(scope="module")
def pairs():
    """A byte-level tokenizer, as most published models have: a token may be a part of a character, or several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["Step 1: the Step 2: then\n\n"] * 3, trainer)
    return tokenizer


@given(TEXTS, st.lists(st.integers(0, 289), max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_every_token_belongs_to_exactly_one_step(pairs, text, noise):
    def decode(ids):
        return pairs.decode(ids.tolist(), skip_special_tokens=True)

    finder = TokenSteps(decode)
    for ids in (pairs.encode(text).ids, noise):
        tokens = np.array(ids, dtype=np.int32)
        for split in SPLITS:
            steps = split_steps(decode(tokens), split)
            found = finder.find(tokens, steps)
            assert found.shape == tokens.shape and found.dtype == np.int64
            assert not len(found) or (found.min() >= 0 and found.max() < len(steps))
            assert (np.diff(found) >= 0).all()
    # Of a text that was encoded, a step that begins at a token's beginning has exactly its own tokens.
    tokens = np.array(pairs.encode(text).ids, dtype=np.int32)
    steps = split_steps(text, Lines())
    found = finder.find(tokens, steps)
    begins = dict(zip(itertools.accumulate(map(len, steps), initial=0), range(len(steps)), strict=False))
    for count in range(len(tokens)):
        before = decode(tokens[:count])
        if text.startswith(before) and not before.endswith("\N{REPLACEMENT CHARACTER}") and len(before) in begins:
            assert found[count] == begins[len(before)]


def test_parts_of_a_character_and_the_end_token_belong_to_a_step(pairs):
    tokens = np.array([*pairs.encode("a\n\N{GRINNING FACE}\nb").ids, 999], dtype=np.int32)

    def decode(ids):
        return pairs.decode([token for token in ids.tolist() if token != 999])

    steps = split_steps(decode(tokens), Lines())
    assert TokenSteps(decode).find(tokens, steps).tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert TokenSteps(decode).find(tokens[:0], ("",)).tolist() == []
    assert TokenSteps(decode).find(np.array([999]), ("",)).tolist() == [0]


def test_unfinished_characters_without_end_take_linear_time():
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return "\N{REPLACEMENT CHARACTER}" if len(ids) else ""

    tokens = np.zeros(5000, dtype=np.int32)
    assert TokenSteps(decode).find(tokens, ("\N{REPLACEMENT CHARACTER}",)).tolist() == [0] * 5000
    assert max(lengths) < 20


@pytest.mark.parametrize(("pattern", "words"), [("(", "RE2"), ("(?=a)", "RE2"), ("a*", "empty"), ("(?m)^", "empty")])
def test_a_marker_must_be_an_expression_that_marks_something(pattern, words):
    with pytest.raises(ValidationError, match=words):
        Marker(pattern=pattern)
