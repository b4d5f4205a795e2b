"""Cuts a response into steps, and assigns each of its tokens to one of them.

Consumes a response's text and tokens. Produces steps that together are the text, and the index of each token's step.
A token belongs to the step in which its text begins, leading white space aside, and one without a text to the step in
which the token before it ends, so that every token of the text that is cut belongs to exactly one step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from yatt_core.spec.rewards.steps import Lines, Marker, StepSplit

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Decode = Callable[[Int32], str]

LONGEST_CHARACTER = 8
"""Maximum number of tokens for which the text of an unfinished character is awaited; UTF-8 has up to four bytes."""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CUT = "\x1e"
_NO_CUT = "\x1f"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def split_steps(text: str, split: StepSplit) -> tuple[str, ...]:
    """Returns the steps of a text, at least one; joined, they are the text. Takes time linear in the text.

    White space before the first step belongs to that step; other white space belongs to the step before it.
    """
    pieces = _by_marker(text, split.pattern) if isinstance(split, Marker) else _by_line(text, isinstance(split, Lines))
    cuts = list[int]()
    offset = 0
    is_first = True
    for piece in pieces:
        if piece.strip():
            if not is_first:
                cuts.append(offset)
            is_first = False
        offset += len(piece)
    return tuple(text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)]))


def _by_line(text: str, every: bool) -> Iterator[str]:
    """Yields pieces that begin at a line after a blank one.

    every: a piece begins at each line.
    """
    lines = _LINE.findall(text)
    starts = [place for place in range(1, len(lines)) if every or not lines[place - 1].strip()]
    for start, stop in itertools.pairwise([0, *starts, len(lines)]):
        yield "".join(lines[start:stop])


def _by_marker(text: str, pattern: str) -> Sequence[str]:
    """Returns pieces that begin at each match of an RE2 expression."""
    if _CUT in text:  # keeps its length, and so all offsets
        lengths = [len(piece) for piece in _by_marker(text.replace(_CUT, _NO_CUT), pattern)]
        bounds = itertools.pairwise(itertools.accumulate(lengths, initial=0))
        return [text[start:stop] for start, stop in bounds]
    marked = pc.replace_substring_regex(pa.array([text], pa.string()), pattern=pattern, replacement=_CUT + r"\0")
    return [piece for piece in marked[0].as_py().split(_CUT) if piece]


@dataclass(frozen=True, slots=True)
class StepText:
    """What of a response's text is cut into steps.

    text: the whole text.
    spans: offsets [start, stop) in it, in order, of the pieces that together are the text of the steps.
    given: length of the beginning that is not the text of the response's tokens: what the chat template wrote.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    given: int = 0


class TokenSteps:
    """Finds the step of each token; keeps the texts of single tokens, at most one for each of the vocabulary.

    decode: returns the text of tokens, without stop tokens and special tokens.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._texts = dict[int, str]()

    def find(self, tokens: Int32, steps: Sequence[str], cut: StepText | None = None) -> Int64:
        """Returns the index of each token's step, [T], never falling; -1 for a token in none of them.

        steps: the steps of the text of these tokens, or of what `cut` says of it.
        """
        whole = "".join(steps)
        if cut is None:
            cut = StepText(whole, ((0, len(whole)),))
        ends = np.cumsum([len(step) for step in steps])
        text = cut.text[cut.given :]
        starts = [cut.given + start for start in _without_space(self._starts(tokens, text), text)]
        places = _places(np.array(starts, np.int64), cut)
        found = np.minimum(np.searchsorted(ends, places, side="right"), len(steps) - 1)
        return np.where(places < 0, -1, found).astype(np.int64)

    def _starts(self, tokens: Int32, text: str) -> Sequence[int]:
        """Returns the offset in the text at which each token's text begins."""
        alone = [self._text(token) for token in tokens.tolist()]
        if "".join(alone) == text:
            return list(itertools.accumulate(map(len, alone), initial=0))[:-1]
        return self._starts_in_context(tokens)

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._decode(np.array([token], dtype=np.int32))
        return self._texts[token]

    def _starts_in_context(self, tokens: Int32) -> Sequence[int]:
        """Returns the offsets for tokens whose texts depend on their neighbours, such as parts of a character.

        The text that a token adds is that of the tokens from a little before it. Parts of a character have one offset.
        """
        starts = list[int]()
        offset = 0
        before = 0
        read = 0
        for place in range(len(tokens)):
            starts.append(offset)
            known = self._decode(tokens[before:read])
            whole = self._decode(tokens[before : place + 1])
            is_long = place + 1 - read >= LONGEST_CHARACTER
            if is_long or (len(whole) > len(known) and not whole.endswith(UNFINISHED)):
                offset += max(0, len(whole) - len(known))
                before = read
                read = place + 1
        return starts


def _places(starts: Int64, cut: StepText) -> Int64:
    """Returns the offset of each token in the text of the steps; -1 for a token that is not in it."""
    if not cut.spans:
        return np.full(len(starts), -1, np.int64)
    begins, ends = np.array(cut.spans, np.int64).T
    lengths = ends - begins
    number = np.searchsorted(begins, starts, side="right") - 1
    # A token without a text at the end of a response belongs to what is before it.
    at_the_end = (starts == len(cut.text)) & (ends[-1] == len(cut.text))
    inside = (number >= 0) & ((starts < ends[number]) | at_the_end)
    return np.where(inside, starts - begins[number] + (np.cumsum(lengths) - lengths)[number], -1)


def _without_space(starts: Sequence[int], text: str) -> Iterator[int]:
    """Yields the offset at which each token's text begins, after white space if there is anything else in it."""
    for start, stop in itertools.pairwise([*starts, len(text)]):
        piece = text[start:stop]
        yield start + len(piece) - len(piece.lstrip() or piece)
