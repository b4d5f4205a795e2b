"""Wrong answers derived from correct ones by seed: what a judge learns to reject.

Consumes a reference answer, the text of the prompt and other answers. Produces a text that differs from the
reference answer. The kinds are those that a policy produces while it learns: near misses at various distances,
mixtures with other answers, permutations, quotes from the prompt, answers to other prompts, and noise of
various lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

Value = TypeVar("Value")

LONGEST_EDITS = 3
"""Maximum number of edits of a near miss."""
LONGEST_QUOTE = 3
"""Maximum number of words quoted from the prompt."""
FOREIGN = "\N{REPLACEMENT CHARACTER}"
"""Represents characters that occur in no prompt."""
EXTRA_LENGTH = 3
"""Maximum number of characters by which noise is longer than the correct answer."""


class Corruption:
    """Derives wrong answers from correct ones.

    answers, prompts: the answers and prompts of the training data; noise is made of their characters.
    """

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
        """Returns a text other than the answer, ignoring case and surrounding white space.

        The result is a function of the arguments only.
        """
        random = Random(seed)
        while True:
            made = self._pick(random, self._kinds)(random, answer, prompt)
            if made.strip().casefold() != answer.strip().casefold():
                return made

    def _near_miss(self, random: Random, answer: str, _prompt: str) -> str:
        """Replaces, drops, inserts, doubles or swaps one to a few characters, usually one."""
        text = list(answer)
        for _ in range(1 + self._below(random, 1 + self._below(random, LONGEST_EDITS))):
            place = self._below(random, len(text) + 1)
            kind = self._below(random, 7)
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
        """Takes each character from the answer or from the answer to another prompt: plausible, and partly correct."""
        other = self._pick(random, self._answers)
        share = random.random()
        length = len(answer) if self._below(random, 4) else len(other)
        return "".join(
            (answer if random.random() < share else other)[place : place + 1] or self._character(random, answer)
            for place in range(length)
        )

    def _permuted(self, random: Random, answer: str, _prompt: str) -> str:
        """Permutes the answer's characters, sometimes by reversing them."""
        if self._below(random, 4) == 0:
            return answer[::-1]
        keys = sorted((random.random(), place) for place in range(len(answer)))
        return "".join(answer[place] for _, place in keys)

    def _of_the_prompt(self, random: Random, _answer: str, prompt: str) -> str:
        """Quotes the last word of the prompt, or a few consecutive words."""
        words = prompt.split() or [""]
        if self._below(random, 2):
            return words[-1]
        start = self._below(random, len(words))
        return " ".join(words[start : start + 1 + self._below(random, LONGEST_QUOTE)])

    def _of_another(self, random: Random, _answer: str, _prompt: str) -> str:
        return self._pick(random, self._answers)

    def _noise(self, random: Random, answer: str, _prompt: str) -> str:
        """Returns random characters."""
        length = self._below(random, len(answer) + EXTRA_LENGTH + 1)
        return "".join(self._character(random, answer) for _ in range(length))

    def _character(self, random: Random, answer: str) -> str:
        """Draws a character: from this answer or, by frequency, from all answers, and sometimes from the prompts."""
        kind = self._below(random, 12)
        if kind == 0:
            return self._pick(random, self._others)
        drawn = answer if kind <= 5 else self._pick(random, self._answers)
        return self._pick(random, drawn or self._others)

    @staticmethod
    def _below(random: Random, count: int) -> int:
        """Draws an integer below count, using only `random()`, which is the same in every Python version."""
        return int(random.random() * count)

    def _pick(self, random: Random, values: Sequence[Value]) -> Value:
        return values[self._below(random, len(values))]
