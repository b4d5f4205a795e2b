"""Extracts the answer from a text: in time linear in its length, whatever a policy wrote.

Consumes a text and options. Produces the answer without surrounding white space, or None. Of a response, the
final text is read, which is what follows the thoughts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.thoughts import split_thoughts
from yatt_core.prompts.tool_calls import last_turn
from yatt_core.rewards.options import Options
from yatt_core.rewards.written_numbers import SIGN, last_number

How = Literal["whole", "tag", "boxed", "last_number", "pattern"]
GROUP = "(?P<answer>"
_BOX = re.compile(
    rf"\\(?:boxed|fbox)(?![A-Za-z])\s*(?:(?P<brace>\{{)|(?P<token>{SIGN}?[0-9]+(?:[.,][0-9]+)*|[A-Za-z0-9]+|\\[A-Za-z]+))"
)
"""A box with braces, or with one number, word or command behind it, as TeX allows it."""
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def final_of(text: str, final: str | None) -> str:
    """Returns the final text of a response: the one that is known, or what stands behind the marks of most models."""
    return split_thoughts(text).final if final is None else final


class ResponseExtraction(Options):
    """Where the answer is in a response.

    with_thoughts: whether it may be in the thoughts; otherwise only the final text is read.
    """

    extract: How = "whole"
    with_thoughts: bool = False
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
        if ("pattern" in self._ways) != (self.pattern is not None):
            raise ValueError("pattern is required with extract: pattern, and only allowed there")
        return self

    @property
    def _ways(self) -> tuple[How, ...]:
        return (self.extract,)

    def of_response(self, text: str, final: str | None = None) -> str | None:
        """Returns the answer in a response; None if there is none.

        final: the text without its thoughts; by default it is divided at the marks of most models.
        """
        if not self.with_thoughts:
            text = final_of(text, final)
        return self._extracted(self.extract, text)

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


class Extraction(ResponseExtraction):
    """Where the answer is in a response, and in the reference answer."""

    extract_reference: How = "whole"

    @property
    def _ways(self) -> tuple[How, ...]:
        return (self.extract, self.extract_reference)

    def of_references(self, prompt: Prompt) -> tuple[str, ...]:
        """Returns the answer in each of the reference answers, of which only the last turn counts.

        Raises `DataError` if there is no reference answer, or no answer in one of them.
        """
        if prompt.answer is None:
            raise DataError("the prompt has no reference answer to compare with")
        return tuple(self._of_reference(answer) for answer in (prompt.answer, *prompt.other_answers))

    def _of_reference(self, answer: str) -> str:
        text = last_turn(answer)
        found = self._extracted(self.extract_reference, text if self.with_thoughts else final_of(text, None))
        if found is None:
            raise DataError(f"the reference answer has no {self.extract_reference}: {answer!r:.100}")
        return found


def tagged(text: str, tag: str) -> str | None:
    """Returns the contents of the last complete element."""
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, max(end, 0))
    return text[start + len(opening) : end] if start >= 0 else None


def boxed(text: str) -> str | None:
    r"""Returns the contents of the last `\boxed` or `\fbox`, in which braces may be nested; None if it has no end.

    Dollar signs around the contents are not part of them.
    """
    last = _last(_BOX, text)
    if last is None:
        return None
    if last["brace"] is None:
        return last["token"]
    depth = 1
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            found = text[last.end() : brace.start()].strip()
            inner = found[1:-1]
            return inner if found == f"${inner}$" and inner and "$" not in inner and inner[-1] != "\\" else found
    return None


def with_plain_boxes(text: str) -> str:
    r"""Returns a text in which each box is written as `\boxed{...}`."""
    return _BOX.sub(lambda box: "\\boxed{" + (f"{box['token']}}}" if box["brace"] is None else ""), text)


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
    return matches_any(pattern, [text])


def matches_any(pattern: str, texts: Sequence[str]) -> bool:
    """Returns whether an RE2 expression matches one of some texts as a whole. Raises as `matches_whole` does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.match_substring_regex(pa.array(texts), pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise ValueError(f"is not an RE2 regular expression: {error}") from None
    return bool(pc.any(found).as_py())
