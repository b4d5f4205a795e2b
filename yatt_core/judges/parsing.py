"""Extracts scores from judges' answers. Consumes a `parse` of the spec; produces a function from text to score.

Every such function takes time linear in the text, because a judge may be manipulated into writing anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from yatt_core.judges.critiques import wrong_steps_in
from yatt_core.prompts.thoughts import split_thoughts
from yatt_core.spec.rewards.judges import JudgePart, RewardModelPart, TemplatedPart
from yatt_core.spec.rewards.parsing import Number, ParseSpec, Pattern, Take, WrongSteps, YesNo


class Parser(Protocol):
    """Reads the text in which a judge's score is."""

    def __call__(self, text: str, steps: int = 0) -> float | None:
        """Returns the score; None if the text contains none.

        steps: number of the response's steps, for a critique.
        """
        ...


class AnswerParser(Protocol):
    """Reads a judge's whole answer."""

    def __call__(self, text: str, steps: int = 0, cut: bool = False) -> float | None:
        """Returns the score; None if the answer contains none.

        steps: as for `Parser`.
        cut: whether the answer ended at its token limit; then the rest of it could have changed the score.
        """
        ...


def parsed_text(part: JudgePart, answer: str) -> str:
    """Returns what of a judge's answer its score is read from: the text behind its thoughts, unless the part says otherwise."""
    reads_all = isinstance(part, RewardModelPart) or part.parse_thoughts
    return answer if reads_all else split_thoughts(answer).final


def answer_parser(part: TemplatedPart) -> AnswerParser:
    """Returns the function that reads a judge's whole answers. Raises as `parser_of` does.

    An answer that was cut has a score only where the first match counts, and where it is still the same without the last
    word, which may have gone on: `Score: 1` may be the beginning of `Score: 10`. A word for yes or no has a token of its
    own and does not go on, and neither does an answer of which one token is wanted.
    """
    parse = parser_of(part.parse)
    takes_last = isinstance(part.parse, WrongSteps) or getattr(part.parse, "take", "first") == "last"
    is_whole = isinstance(part.parse, YesNo) or part.max_new_tokens == 1

    def parsed(text: str, steps: int = 0, cut: bool = False) -> float | None:
        read = text if part.parse_thoughts else split_thoughts(text).final
        score = parse(read, steps)
        if not cut or score is None:
            return score
        if takes_last and part.max_new_tokens > 1:
            return None
        return score if is_whole or parse(_LAST_WORD.sub("", read), steps) == score else None

    return parsed


_LAST_WORD = re.compile(r"\S{1,100}\s{0,100}\Z")
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_OF_A_TOTAL = r"of(?:\s{1,3}an?)?(?:\s{1,3}(?:possible|maximum|total))?(?:\s{1,3}of)?"
_LONE_NUMBER = re.compile(
    rf"(?<![\w.])(?<![0-9][,\u2013])(?<![-+])(?P<number>{_NUMBER})"
    rf"(?:[\s*_]{{0,4}}(?:/|(?:out\s{{1,3}})?{_OF_A_TOTAL})[\s*_]{{0,4}}(?P<best>{_NUMBER})|(?P<percent>\s?%))?"
    r"(?!\w)(?![-,/\u2013][0-9])",
    re.IGNORECASE,
)
"""Matches a number, with "/10" or "out of 10" if that follows. Parts of ranges (7-8), lists and decimal commas do not
match.
"""
LOOK_BACK = 40
_BEST_AHEAD = re.compile(
    rf"(?:/|\bout\s{{1,3}}{_OF_A_TOTAL}|\bmax(?:imum)?\.?:?(?:\s{{1,3}}of)?)[\s*_]{{0,4}}$",
    re.IGNORECASE,
)
"""What precedes a number that is the best possible score, as in "3 points out of 10" or "3 (max 10)"."""
_SCALE = re.compile(
    rf"\bscale\s{{1,3}}(?:of|from)\s{{1,3}}{_NUMBER}\s{{0,3}}(?:to|and|-|\u2013)\s{{0,3}}{_NUMBER}", re.IGNORECASE
)


def parser_of(spec: ParseSpec) -> Parser:
    """Returns the function that the spec describes. The function expects text that is valid UTF-8."""
    match spec:
        case YesNo():
            return _yes_no(spec)
        case Number():
            return lambda text, steps=0: _within(
                _taken(_scores_in(text, spec.maximum), spec.take), spec.minimum, spec.maximum
            )
        case Pattern():
            return lambda text, steps=0: _within(_group(spec.pattern, text), spec.minimum, spec.maximum)
        case WrongSteps():
            return _number_of_wrong_steps


def _number_of_wrong_steps(text: str, steps: int = 0) -> float | None:
    wrong = wrong_steps_in(text, steps)
    return None if wrong is None else float(len(wrong))


def _yes_no(spec: YesNo) -> Parser:
    scores = {word.casefold(): 1.0 for word in spec.yes} | {word.casefold(): 0.0 for word in spec.no}
    alternatives = "|".join(re.escape(word) for word in sorted(scores, key=len, reverse=True))
    # A word in front of another one is part of a phrase: "no idea", "no error", "the correct answer".
    words = re.compile(rf"(?<!\w)(?:{alternatives})(?![-'\u2019]?\w)(?=[^\S\n]*(?:$|[^\w\s]))", re.MULTILINE)

    def score(text: str, steps: int = 0) -> float | None:
        found = _taken(words.findall(text.casefold()), spec.take)
        return None if found is None else scores[found]

    return score


def _scores_in(text: str, maximum: float) -> list[str]:
    """Returns the numbers of a text that can be scores.

    "8/10" and "8 out of 10" are read as 8 if the maximum is 10, and "80 %" as 80 if the maximum is 100; otherwise
    they are not scores. The bounds in "on a scale from 1 to 10" are not scores either.
    """
    found = []
    text = _SCALE.sub(" ", text)
    for match in _LONE_NUMBER.finditer(text):
        if _BEST_AHEAD.search(text[max(0, match.start() - LOOK_BACK) : match.start()]):
            continue
        best = 100.0 if match["percent"] else float(match["best"] or maximum)
        if best == maximum:
            found.append(match["number"])
    return found


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
