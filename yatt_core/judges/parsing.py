"""Extracts scores from judges' answers. Consumes a `parse` of the spec; produces a function from text to score.

Every such function takes time linear in the text, because a judge may be manipulated into writing anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from yatt_core.spec.rewards.parsing import Number, ParseSpec, Pattern, Take, YesNo

Parser = Callable[[str], float | None]
"""Maps a judge's answer to its score; None if it contains none."""

_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_LONE_NUMBER = re.compile(rf"(?<![\w.])(?:(?<![-+]){_NUMBER})(?!\w)")


def parser_of(spec: ParseSpec) -> Parser:
    """Returns the function that the spec describes. The function expects text that is valid UTF-8."""
    match spec:
        case YesNo():
            return _yes_no(spec)
        case Number():
            return lambda text: _within(_taken(_LONE_NUMBER.findall(text), spec.take), spec.minimum, spec.maximum)
        case Pattern():
            return lambda text: _within(_group(spec.pattern, text), spec.minimum, spec.maximum)


def _yes_no(spec: YesNo) -> Parser:
    scores = {word.casefold(): 1.0 for word in spec.yes} | {word.casefold(): 0.0 for word in spec.no}
    alternatives = "|".join(re.escape(word) for word in sorted(scores, key=len, reverse=True))
    words = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")

    def score(text: str) -> float | None:
        found = _taken(words.findall(text.casefold()), spec.take)
        return None if found is None else scores[found]

    return score


def _taken(found: Sequence[str], take: Take) -> str | None:
    return None if not found else found[0 if take == "first" else -1]


def _group(pattern: str, text: str) -> str | None:
    """Returns the group `score` of the first match."""
    match = pc.extract_regex(pa.array([text], pa.string()), pattern=pattern)[0].as_py()
    return None if match is None else str(match["score"])


def _within(text: str | None, minimum: float, maximum: float) -> float | None:
    if text is None or not re.fullmatch(_NUMBER, text.strip()):
        return None
    number = float(text)
    return number if minimum <= number <= maximum else None
