"""Wrong answers that a judge learns from: they are indeed wrong, of many kinds, and determined by their seeds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.judge.corruption import Corruption
from tests.matrix import examples

WORDS = ["nus", "noom", "tac", "god", "llab"]


@given(st.integers(0, 2**64 - 1), st.sampled_from(WORDS), st.text(max_size=20))
@settings(max_examples=examples(200), deadline=None)
def test_a_wrong_answer_is_wrong_and_a_function_of_its_seed(seed, answer, prompt):
    corruption = Corruption(WORDS, ["Spell sun backward:"])
    made = corruption.wrong(seed, answer, prompt)
    assert made.strip().casefold() != answer
    assert made == Corruption(WORDS, ["Spell sun backward:"]).wrong(seed, answer, prompt)


def test_wrong_answers_come_in_all_kinds():
    corruption = Corruption(WORDS, ["Spell sun backward:"])
    made = [corruption.wrong(seed, "noom", "Spell this word backward: moon") for seed in range(2000)]
    assert {len(text) for text in made} >= set(range(8)), "too short and too long"
    assert {"moon", "mnoo", "nom", "nooom", "nus", "backward:"} <= set(made)
    near = sum(len(text) == 4 and sum(a != b for a, b in zip(text, "noom", strict=True)) == 1 for text in made)
    assert near > 100, "one letter off"
    assert any("\N{REPLACEMENT CHARACTER}" in text for text in made), "characters that no prompt has"
