"""Keeps text that others wrote text: what spells a control token of the model is encoded as ordinary characters.

Consumes a tokenizer and texts. A text is guarded before it enters a chat template: an invisible mark is put into each
spelling of a control token. The rendered text is encoded piece by piece between the marks, so that no piece spells the
token. Text without such spellings is encoded as a whole, as if there were no guard.

Control tokens are the special tokens, and added tokens that the model's template or its parsers know, such as
`</think>` and `<tool_call>`. Other added tokens (Gemma has one for `<h1>`, and for two line breaks) are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from yatt_core.models.tokenizer import IMAGE
from yatt_core.prompts.call_syntaxes import MARKS as CALL_MARKS
from yatt_core.prompts.image_tokens import ImageTokens
from yatt_core.prompts.thoughts import FAMILIES, Marks

MARK = "\ufdd0"
"""Put into spellings of control tokens: a code point that is never assigned to a character."""
IN_ITS_PLACE = "\ufdd1"
"""Stands for the mark in texts of others that contain it."""


class ControlText:
    """Guards texts, and encodes texts in which others are guarded.

    known: strings that parsers know, besides the special tokens and those in the chat template; only added tokens of the
        tokenizer count.
    own: those that an assistant's message may contain: the marks of its thoughts and calls.
    allowed: special tokens that all texts may contain, such as the placeholder of an image.
    """

    def __init__(
        self, tokenizer: Any, known: Iterable[str] = (), own: Iterable[str] = (), allowed: Iterable[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
        own_marks = frozenset(own)
        parsed = frozenset(known) | own_marks
        permitted = frozenset(allowed)
        spelled = set[str]()
        special = set[str]()
        for token in tokenizer.added_tokens_decoder.values():
            text = str(token.content)
            if len(text) < 2 or text in permitted:  # a single character cannot be divided
                continue
            if token.special:
                special.add(text)
            if token.special or text in parsed or (text in template and not text.isspace()):
                spelled.add(text)
        self._all = _pattern(spelled)
        self._special = _pattern(special - own_marks)

    def guard(self, text: str) -> str:
        """Returns a text in which every spelling of a control token has a mark behind its first character."""
        return self._marked(self._all, text)

    def guard_special(self, text: str) -> str:
        """Returns the text of an assistant's message: only special tokens are guarded, not those that parsers know."""
        return self._marked(self._special, text)

    def encode(self, text: str, goes_on: bool = False) -> list[int]:
        """Returns the tokens of a text, [length]; control tokens outside of guarded spellings are recognised.

        goes_on: whether another text stands before it.
        """
        first, *others = text.split(MARK)
        tokens = self._within(first) if goes_on else self._bare(first)
        for piece in others:
            tokens += self._within(piece)
        return tokens

    def encode_alone(self, text: str) -> list[int]:
        """Returns the tokens of a text that others wrote, without a template but with the tokens that begin a text: [length]."""
        return self.encode_framed(self.guard(text))

    def encode_framed(self, text: str) -> list[int]:
        """Returns the tokens of a text in which others are guarded, with those that begin and end a text: [length]."""
        if MARK not in text:
            return list(self._tokenizer(text)["input_ids"])
        before, after = self._frame
        return [*before, *self.encode(text), *after]

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The tokens that begin and end a text that stands for itself."""
        letter = self._bare("a")
        framed = list(self._tokenizer("a")["input_ids"])
        place = next(
            (start for start in range(len(framed)) if framed[start : start + len(letter)] == letter), len(framed)
        )
        return framed[:place], framed[place + len(letter) :]

    def without_marks(self, text: str) -> str:
        """Returns a rendered text as people read it."""
        return text.replace(MARK, "")

    def _bare(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _within(self, text: str) -> list[int]:
        """Returns the tokens of a text behind another one: without the space that some tokenizers put before a text."""
        if self._lead is None or not text:
            return self._bare(text)
        tokens = self._bare(f"\n{text}")
        return tokens[len(self._lead) :] if tokens[: len(self._lead)] == self._lead else self._bare(text)

    @cached_property
    def _lead(self) -> list[int] | None:
        """The tokens of a line break; None for a tokenizer that puts nothing before a text."""
        lead = self._bare("\n")
        return None if self._bare("\na") == [*lead, *self._bare("a")] else lead

    def _marked(self, pattern: re.Pattern[str] | None, text: str) -> str:
        text = text.replace(MARK, IN_ITS_PLACE)
        if pattern is None:
            return text
        # A match is divided behind its first character, and the search goes on there: spellings may overlap.
        cuts = [match.start() + 1 for match in pattern.finditer(text)]
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return MARK.join(pieces)


def _pattern(spellings: set[str]) -> re.Pattern[str] | None:
    """Returns a pattern that matches without width wherever a spelling begins; None if there are none."""
    if not spellings:
        return None
    return re.compile("(?=" + "|".join(map(re.escape, sorted(spellings))) + ")")


def control_text(tokenizer: Any, marks: Marks, images: ImageTokens | None = None) -> ControlText:
    """Returns what guards the texts of a model.

    marks: what its thoughts begin and end with.
    images: its placeholders of images, which texts may contain.
    """
    known = [mark for family in FAMILIES for mark in family.spellings]
    known += [mark for syntax in CALL_MARKS.values() for mark in syntax]
    # The marks of gpt-oss divide messages; in the text of one they would begin another.
    own = [mark for name, syntax in CALL_MARKS.items() if name != "harmony" for mark in syntax]
    allowed = [] if images is None else [IMAGE, images.text]
    return ControlText(tokenizer, known, [marks.begin, marks.end, *own], allowed)
