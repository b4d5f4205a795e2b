"""Reward functions included in YATT, each an entry point of the group `yatt.rewards`, in time linear in the response.

They run in the process that scores. Functions that may take longer are in modules of their own.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Self

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import Extraction, matches_whole
from yatt_core.rewards.options import Options, built_in
from yatt_core.rewards.written_numbers import same_number

TRUTHS = ("true", "false")
LONGEST_NUMBER = 18
"""Maximum number of digits of a number that is read from a response."""


class ExactMatch(Extraction):
    """Options of `exact_match`."""

    case_sensitive: bool = True


@built_in(ExactMatch)
def exact_match(prompt: Prompt, response: str, options: ExactMatch, final: str | None = None) -> float:
    """Returns 1 if the response equals one of the reference answers, ignoring surrounding white space, else 0.

    If a reference answer demonstrates tool calls, only the text after the last result is compared. Case never counts if
    the reference answer is `true` or `false`. With `last_number` for either, numbers are compared, not how they are written.
    Raises `DataError` if there is no reference answer.
    """
    expected = options.of_references(prompt)
    given = options.of_response(response, final)
    return float(given is not None and any(matches(given, one, options) for one in expected))


def matches(given: str, expected: str, options: ExactMatch) -> bool:
    """Returns whether what a response gives equals a reference answer."""
    if given == expected:
        return True
    if not options.case_sensitive or expected.casefold() in TRUTHS:
        return given.casefold() == expected.casefold()
    return "last_number" in (options.extract, options.extract_reference) and same_number(given, expected)


class Format(Options):
    """Options of `format`."""

    tags: tuple[str, ...] = ()
    pattern: str | None = None

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            matches_whole(pattern, "")
        return pattern

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.tags) == (self.pattern is not None):
            raise ValueError("expected either tags (a list of names) or pattern (an RE2 expression)")
        return self


@built_in(Format)
def format_match(prompt: Prompt, response: str, options: Format, prefill: str | None = None) -> float:
    """Returns 1 if the response has the form that the options describe, else 0.

    prefill: what the chat template wrote at the start of the response. None if this is unknown: then the template may
        have written the first tag, so that a response that does not have it is read as if it had.
    """
    if options.pattern is not None:
        return float(matches_whole(options.pattern, response))
    first = f"<{options.tags[0]}>"
    opened = first if prefill is None and first not in response else ""
    return float(_is_sequence(opened + response, options.tags))


def _is_sequence(text: str, tags: tuple[str, ...]) -> bool:
    """Returns whether a text consists of one element for each tag, in this order, and of white space."""
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    if any(text.count(mark) != marks.count(mark) for mark in set(marks)):
        return False
    rest = text
    for number, mark in enumerate(marks):
        before, found, rest = rest.partition(mark)
        if not found or (number % 2 == 0 and before.strip()):
            return False
    return not rest.strip()


class LengthRange(Options):
    """Options of `length_range`, in tokens."""

    minimum: NonNegativeInt = 0
    maximum: PositiveInt
    slack: NonNegativeInt = 0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


@built_in(LengthRange)
def length_range(prompt: Prompt, response: str, options: LengthRange, tokens: int) -> float:
    """Returns 1 for a length from `minimum` to `maximum` tokens, falling linearly to 0 over `slack` tokens beyond."""
    beyond = max(options.minimum - tokens, tokens - options.maximum, 0)
    return 1.0 if not beyond else max(0.0, 1.0 - beyond / (options.slack + 1))


class Overlong(Options):
    """Options of `overlong_penalty`, in tokens."""

    maximum: PositiveInt
    buffer: PositiveInt

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.maximum:
            raise ValueError(f"buffer {self.buffer} is larger than maximum {self.maximum}")
        return self


@built_in(Overlong)
def overlong_penalty(prompt: Prompt, response: str, options: Overlong, tokens: int) -> float:
    """Returns DAPO's soft penalty of overlong responses (arXiv 2503.14476, equation 13): from 0 to -1.

    0 for up to maximum - buffer tokens; then ((maximum - buffer) - tokens) / buffer; -1 beyond maximum.
    """
    free = options.maximum - options.buffer
    if tokens <= free:
        return 0.0
    return (free - tokens) / options.buffer if tokens <= options.maximum else -1.0


def running_sums_steps(prompt: Prompt, steps: Sequence[str]) -> list[bool]:
    """Returns for each line of a response to the task `running_sums` whether it is wrong.

    A line is right if it is the line before plus the next number, modulo the modulus; before the first, and after a
    line that is not a number, the sums of the task count. Lines after the last number are wrong, and so is the last line of
    a response that ends before it.

    Raises `DataError` for a prompt of another task.
    """
    try:
        numbers = prompt.entry["metadata"]["numbers"]
        modulus = prompt.entry["metadata"]["modulus"]
    except (KeyError, TypeError):
        raise DataError("the prompt is not of the task running_sums; use another function for its steps") from None
    wrong = list[bool]()
    before = 0
    total = 0
    for step, number in itertools.zip_longest(steps, numbers[: len(steps)]):
        if number is None:
            wrong.append(True)
            continue
        total = (total + number) % modulus
        text = step.strip()
        wrong.append(text != str((before + number) % modulus))
        is_number = text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER
        before = int(text) % modulus if is_number else total
    if 0 < len(wrong) < len(numbers):
        wrong[-1] = True
    return wrong


def virtual_score(prompt: Prompt, response: str) -> float:
    """Returns a substitute for a judgement: a hash of prompt id and response, one of 0.0, 0.1 ... 0.9."""
    digest = hashlib.sha256(f"{prompt.prompt_id}\0{response}".encode()).digest()
    return int.from_bytes(digest[:8], "little") * 10 // 2**64 / 10
