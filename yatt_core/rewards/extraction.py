"""Extracts the answer from a text: in time linear in its length, whatever a policy wrote.

Consumes a text and `Extraction` options. Produces the answer without surrounding white space, or None.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.tool_calls import last_turn
from yatt_core.rewards.options import Options

How = Literal["whole", "tag", "boxed", "last_number", "pattern"]
GROUP = "(?P<answer>"
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|[-+]?\.[0-9]+")
_BOX = re.compile(r"\\f?boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class Extraction(Options):
    """Where the answer is in a response, and in the reference answer."""

    extract: How = "whole"
    extract_reference: How = "whole"
    tag: str = Field(default="answer", pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    pattern: str | None = None

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            if GROUP not in pattern:
                raise ValueError("the pattern needs a group (?P<answer>...)")
            _matched(pattern, "")
        return pattern

    @model_validator(mode="after")
    def _pattern_if_used(self) -> Self:
        if ("pattern" in (self.extract, self.extract_reference)) != (self.pattern is not None):
            raise ValueError("pattern is required with extract: pattern, and only allowed there")
        return self

    def of_response(self, text: str) -> str | None:
        """Returns the answer in a response; None if there is none."""
        return self._extracted(self.extract, text)

    def of_reference(self, prompt: Prompt) -> str:
        """Returns the answer in the reference answer, of which only the last turn counts.

        Raises `DataError` if there is no reference answer, or no answer in it.
        """
        if prompt.answer is None:
            raise DataError("the prompt has no reference answer to compare with")
        found = self._extracted(self.extract_reference, last_turn(prompt.answer))
        if found is None:
            raise DataError(f"the reference answer has no {self.extract_reference}: {prompt.answer!r:.100}")
        return found

    def _extracted(self, how: How, text: str) -> str | None:
        match how:
            case "whole":
                found: str | None = text
            case "tag":
                found = tagged(text, self.tag)
            case "boxed":
                found = boxed(text)
            case "last_number":
                found = last_number(text)
            case "pattern":
                found = _matched(self.pattern or "", text)
        return None if found is None else found.strip()


def tagged(text: str, tag: str) -> str | None:
    """Returns the contents of the last complete element."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, max(end, 0))
    return text[start + len(opening) : end] if start >= 0 else None


def boxed(text: str) -> str | None:
    r"""Returns the contents of the last `\boxed{...}`, in which braces may be nested; None if it has no end."""
    last = _last(_BOX, text)
    if last is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[last.end() : brace.start()]
    return None


def last_number(text: str) -> str | None:
    """Returns the last number in decimal digits, without thousands separators and a leading plus."""
    last = _last(_NUMBER, text)
    return None if last is None else last[0].replace(",", "").removeprefix("+")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def _matched(pattern: str, text: str) -> str | None:
    """Returns the group `answer` of the first match of an RE2 expression; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.extract_regex(pa.array([text]), pattern=pattern)[0].as_py()
    except pa.ArrowInvalid as error:
        raise ValueError(f"is not an RE2 regular expression with named groups only: {error}") from None
    return None if found is None else str(found["answer"])


def matches_whole(pattern: str, text: str) -> bool:
    """Returns whether an RE2 expression matches a whole text. Raises `ValueError` for an invalid expression."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return bool(pc.match_substring_regex(pa.array([text]), pattern=rf"\A(?:{pattern})\z")[0].as_py())
    except pa.ArrowInvalid as error:
        raise ValueError(f"is not an RE2 regular expression: {error}") from None
