"""Wrong answers, made from right ones by seed: what a judge learns to refuse.

Consumes a reference answer, the prompt's text and other answers; produces a text that is not the reference answer. The kinds
are those that a policy comes up with while it learns: near misses at every distance, answers crossed with others, permutations,
what the prompt says, answers to other prompts, and noise, too short and too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

Value = TypeVar("Value")

LONGEST_EDITS = 3
"""Most edits of a near miss."""
LONGEST_QUOTE = 3
"""Most words of the prompt in a wrong answer."""
FOREIGN = "\N{REPLACEMENT CHARACTER}"
"""Stands for characters that no prompt has."""
EXTRA_LENGTH = 3
"""Noise is so much longer than the right answer at the most."""


class Corruption:
    """answers, prompts: those that are learnt from; noise is made of their characters."""

    def __init__(self, answers: Sequence[str], prompts: Iterable[str]) -> None:
        self._answers = answers
        self._others = [*sorted({character for text in prompts for character in text}), FOREIGN]
        self._kinds: tuple[Callable[[Random, str, str], str], ...] = (
            *[self._near_miss] * 5,
            *[self._crossed] * 3,
            self._permuted,
            self._of_the_prompt,
            self._of_another,
            self._noise,
        )

    def wrong(self, seed: int, answer: str, prompt: str) -> str:
        """A text other than the answer, white space around it and case aside; a function of its arguments alone."""
        random = Random(seed)
        while True:
            made = self._pick(random, self._kinds)(random, answer, prompt)
            if made.strip().casefold() != answer.strip().casefold():
                return made

    def _near_miss(self, random: Random, answer: str, _prompt: str) -> str:
        """One to a few characters, one mostly, replaced, dropped, put in, doubled, or swapped with their neighbour."""
        text = list(answer)
        for _ in range(1 + self._below(random, 1 + self._below(random, LONGEST_EDITS))):
            place, kind = self._below(random, len(text) + 1), self._below(random, 7)
            if kind == 0 or place == len(text):
                text.insert(place, self._character(random, answer))
            elif kind <= 3:
                text[place] = self._character(random, answer)
            elif kind == 4:
                del text[place]
            elif kind == 5:
                text.insert(place, text[place])
            elif place + 1 < len(text):
                text[place : place + 2] = text[place + 1], text[place]
        return "".join(text)

    def _crossed(self, random: Random, answer: str, _prompt: str) -> str:
        """Place by place the answer's character, or that of another prompt's answer: what looks likely, and is half right."""
        other, share = self._pick(random, self._answers), random.random()
        length = len(answer) if self._below(random, 4) else len(other)
        return "".join(
            (answer if random.random() < share else other)[place : place + 1] or self._character(random, answer)
            for place in range(length)
        )

    def _permuted(self, random: Random, answer: str, _prompt: str) -> str:
        """The answer's characters in another order; its reversal now and then."""
        if self._below(random, 4) == 0:
            return answer[::-1]
        keys = sorted((random.random(), place) for place in range(len(answer)))
        return "".join(answer[place] for _, place in keys)

    def _of_the_prompt(self, random: Random, _answer: str, prompt: str) -> str:
        """Its last word, or a few words as they stand there."""
        words = prompt.split() or [""]
        if self._below(random, 2):
            return words[-1]
        start = self._below(random, len(words))
        return " ".join(words[start : start + 1 + self._below(random, LONGEST_QUOTE)])

    def _of_another(self, random: Random, _answer: str, _prompt: str) -> str:
        return self._pick(random, self._answers)

    def _noise(self, random: Random, answer: str, _prompt: str) -> str:
        """Characters at random."""
        length = self._below(random, len(answer) + EXTRA_LENGTH + 1)
        return "".join(self._character(random, answer) for _ in range(length))

    def _character(self, random: Random, answer: str) -> str:
        """One of answers mostly, as often as it occurs there; often of this one, and now and then one of prompts."""
        kind = self._below(random, 12)
        if kind == 0:
            return self._pick(random, self._others)
        drawn = answer if kind <= 5 else self._pick(random, self._answers)
        return self._pick(random, drawn or self._others)

    @staticmethod
    def _below(random: Random, count: int) -> int:
        """A whole number below count. By `random()` alone, which every version of Python draws alike."""
        return int(random.random() * count)

    def _pick(self, random: Random, values: Sequence[Value]) -> Value:
        return values[self._below(random, len(values))]
