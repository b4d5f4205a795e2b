"""The reward for mathematically equal answers by math-verify (extra `math`), an entry point of the group `yatt.rewards`.

A module of its own: the library takes a second to import, and may take arbitrarily long on what a policy wrote.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from pydantic import Field, NonNegativeInt

from yatt_core.errors import ConfigurationError, DataError, UnreadableResponseError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import Extraction
from yatt_core.rewards.options import built_in

try:
    from math_verify import parse, verify
except ModuleNotFoundError:
    raise ConfigurationError("math-verify is not installed; install yatt[math]") from None

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns in each process that its time limits are off

LONGEST = 10_000
"""Maximum length of an answer in characters; the parser is slower than linear."""


class MathEqual(Extraction):
    """Options of `math_equal`: extraction, and decimal places to which numbers are compared."""

    decimals: NonNegativeInt = Field(default=6, le=15)


@built_in(MathEqual, blames_response=True)
def math_equal(prompt: Prompt, response: str, options: MathEqual) -> float:
    """Returns 1 if the answer equals the reference answer as a mathematical expression, else 0.

    With `extract: whole`, math-verify looks for the answer in the response. Raises `DataError` for a reference answer that
    it cannot parse, and `UnreadableResponseError` for an answer that is too long.
    """
    given = options.of_response(response)
    if not given:
        return 0.0
    if options.extract != "whole":
        given = _expression(given)
    if len(given) > LONGEST:
        raise UnreadableResponseError(f"its answer has {len(given)} characters; at most {LONGEST} are parsed")
    reference = _reference(options.of_reference(prompt))
    # The library's own time limits would replace the one of this call.
    found = parse(given, parsing_timeout=None)
    return float(verify(list(reference), found, float_rounding=options.decimals, timeout_seconds=None))


@functools.lru_cache(1024)
def _reference(text: str) -> tuple[Any, ...]:
    found = tuple(parse(_expression(text), parsing_timeout=None))
    if not found:
        raise DataError(f"the reference answer is not a mathematical expression: {text!r:.100}")
    return found


def _expression(text: str) -> str:
    """Returns an answer in a form in which math-verify parses all of it."""
    return text if "$" in text or "\\boxed" in text else f"\\boxed{{{text}}}"
