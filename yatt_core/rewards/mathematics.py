"""The reward for mathematically equal answers by math-verify (extra `math`), an entry point of the group `yatt.rewards`.

A module of its own: the library takes a second to import, and may take arbitrarily long on what a policy wrote.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from pydantic import Field, NonNegativeInt

from yatt_core.errors import ConfigurationError, DataError, UnreadableResponseError
from yatt_core.installed import failure_text
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import Extraction, boxed, with_plain_boxes
from yatt_core.rewards.options import built_in
from yatt_core.rewards.written_numbers import number_alone, numeral, with_plain_numbers

try:
    from math_verify import parse, verify

    from yatt_core.rewards.expressions import equal_everywhere, near
except ModuleNotFoundError:
    raise ConfigurationError("math-verify is not installed; install yatt[math]") from None

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns in each process that its time limits are off

LONGEST = 10_000
"""Maximum length of an answer in characters; the parser is slower than linear."""
END = 2_000
"""Characters at the end of a longer response in which its answer is looked for if it has no box."""
SHORTEST_WORD = 3
"""Letters of a word; two may be a product, or the ends of a line."""
_FRAME = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}|\\(?:left|right)(?![A-Za-z])")
_SPACE = re.compile(r"(?:[\s$~]|\\[,;:! ])+")
_NEEDLESS = re.compile(r" (?!\w)|(?<!\w) ")


class MathEqual(Extraction):
    """Options of `math_equal`: extraction, and decimal places to which numbers are compared."""

    decimals: NonNegativeInt = Field(default=6, le=15)


@built_in(MathEqual, blames_response=True)
def math_equal(prompt: Prompt, response: str, options: MathEqual, final: str | None = None) -> float:
    """Returns 1 if the answer equals one of the reference answers as a mathematical expression, else 0.

    With `extract: whole`, math-verify looks for the answer in the response; in a long one, at its end. Raises `DataError`
    for a reference answer that it cannot parse, and `UnreadableResponseError` for an answer that is too long.
    """
    references = options.of_references(prompt)
    given = options.of_response(response, final)
    if not given:
        return 0.0
    given = with_plain_numbers(given)
    if options.extract == "whole":
        given = _end(with_plain_boxes(given))
    if len(given) > LONGEST:
        raise UnreadableResponseError(f"its answer has {len(given)} characters; at most {LONGEST} are parsed")
    return float(any(_equal(given, with_plain_numbers(one), options) for one in references))


@built_in(MathEqual)
def check_row(prompt: Prompt, response: str, options: MathEqual) -> float:
    """Returns 0 if the reference answers of a row can be compared with. Raises `DataError` if one cannot be parsed."""
    for reference in options.of_references(prompt):
        _reference(with_plain_numbers(reference))
    return 0.0


def _equal(given: str, reference: str, options: MathEqual) -> bool:
    """Returns whether two answers are equal; both have plain numbers. Raises as `math_equal` does."""
    texts = [text for text in (given, boxed(given)) if text]
    if any(_same_text(text, reference) for text in texts):
        return True
    number = next(filter(None, map(number_alone, texts)), None)
    wanted = number_alone(reference)
    if number is not None and wanted is not None and not (number[1] or wanted[1]):
        return near(number[0], wanted[0], options.decimals)
    expected = list(_reference(reference))
    # The library's own time limits would replace the one of this call.
    found = parse(given if options.extract == "whole" else _expression(given), parsing_timeout=None)
    if not found:
        return False
    if _is_words(expected[-1]) and _is_words(found[-1]):  # the library takes their letters for factors, in any order
        return _same_text(found[-1], expected[-1])
    numerals = [_first_numeral(*texts, found[-1]), _first_numeral(reference, expected[-1])]
    if None not in numerals:  # the library leaves out their bases
        return numerals[0] == numerals[1]
    is_equal = verify(expected, found, float_rounding=options.decimals, timeout_seconds=None)
    try:
        if is_equal:
            return near(expected[0], found[0], options.decimals)
        return equal_everywhere(expected[0], found[0])
    except Exception as error:  # noqa: BLE001 - sympy raises whatever it likes on what a policy wrote
        raise UnreadableResponseError(f"its answer cannot be computed: {failure_text(error)}") from None


def _same_text(one: str, other: str) -> bool:
    """Returns whether two answers are the same text, apart from LaTeX's frames; words also if their case differs."""
    texts = [_unframed(text) for text in (one, other)]
    if not texts[0]:
        return False
    is_word = len(texts[0]) > 1 and texts[0].replace(" ", "").isalpha()
    return texts[0] == texts[1] or (is_word and texts[0].casefold() == texts[1].casefold())


def _first_numeral(*texts: Any) -> tuple[int, int] | None:
    return next(filter(None, (numeral(text) for text in texts if isinstance(text, str))), None)


def _is_words(read: Any) -> bool:
    """Returns whether what math-verify has read is a text of letters among which is a word, not only names of variables."""
    if not isinstance(read, str):
        return False
    text = _unframed(read)
    return text.replace(" ", "").isalpha() and any(len(word) >= SHORTEST_WORD for word in text.split(" "))


def _unframed(text: str) -> str:
    """Returns a text without LaTeX's frames of words, and without white space except between words and numbers."""
    words = _FRAME.sub(lambda frame: frame[1] or "", text)
    return _NEEDLESS.sub("", _SPACE.sub(" ", words).strip())


def _end(text: str) -> str:
    """Returns a text that is not longer than what is parsed, or the end of a longer one: its last box, or its last lines."""
    if len(text) <= LONGEST:
        return text
    start = text.rfind("\\boxed{")
    if start >= 0:
        line = text.rfind("\n", max(0, start - END), start)  # further boxes on its line belong to the answer
        start = line + 1 if line >= 0 else start
        return text[start : start + LONGEST]
    start = len(text) - END
    line = text.find("\n", start)
    start = line + 1 if line >= 0 and text[line:].strip() else start
    if text.count("$", 0, start) % 2:  # what follows begins within mathematics
        start = text.find("$", start) + 1
    return text[start:]


@functools.lru_cache(1024)
def _reference(text: str) -> tuple[Any, ...]:
    found = tuple(parse(_expression(text), parsing_timeout=None)) if text else ()
    if not found:
        raise DataError(f"the reference answer is not a mathematical expression: {text!r:.100}")
    return found


def _expression(text: str) -> str:
    """Returns an answer in a form in which math-verify parses all of it."""
    text = with_plain_boxes(text)
    return text if "$" in text or "\\boxed" in text else f"\\boxed{{{text}}}"
