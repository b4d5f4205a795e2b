"""What reference answers are, so that a reward can compare them: pure functions.

Consumes the answers of the first rows. Produces a kind, or the reason why no built-in reward can compare them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

from ops.starter.recognition.table import MOST_OF
from yatt_core.json_text import WrittenFloat, parsed
from yatt_core.rewards.extraction import boxed
from yatt_core.rewards.non_answers import is_non_answer
from yatt_core.rewards.written_numbers import last_number

LETTERS = "ABCDEFGHIJ"
MOST_WORDS = 3
MOST_CHARACTERS = 60
"""Of an answer that can be compared as text: a longer one is one of many ways to say the same."""
LONGEST_FORMULA = 300
DOUBTFUL = frozenset({"none", "null", "unknown"})
"""Answers, or what stands for one that is missing: a file may mean either."""
_NUMBER = re.compile(
    r"\s*\\?\$?\s*[-+\u2212]?\s*(?:\d{1,3}(?:(?:,|\{,\})\d{3})+|\d+)(?:\.\d+)?\s*\\?[%$]?\s*|\s*[-+]?\.\d+\s*"
)
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_FINAL = re.compile(r"####\s*\S[^\n]*\s*$")
_LETTER = re.compile(rf"\s*\(?([{LETTERS}])\)?\.?\s*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{1,2}:\d{2}(?::\d{2})?")
_LATEX = re.compile(r"\\[a-zA-Z]+|\^|_\{")
_WORD = re.compile(r"[^\W\d_]{3,}")
_NAME = re.compile(r"[^\W\d_]{2,}")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "log", "exp", "sqrt", "cot", "sec", "csc", "max", "min", "mod", "inf", "pi", "ln", "lg"}
)
# Substances, units, versions, addresses, ratios and codes, and spans of numbers: mathematics takes different ones for equal.
_NO_FORMULA = re.compile(r"[^\W\d_]\.?\d|\d\s+[^\W\d_]|\d[A-Z]|\d\.\d+\.\d|0[xX]|:")
_SPANS = re.compile(r"\s*\d+(?:\s*-\s*\d+)+\s*")


class AnswerKind(Enum):
    """A kind of answer, with its name in the plural."""

    BOOLEAN = "true or false"
    YES_NO = "yes or no"
    NUMBER = "numbers"
    LETTER = "letters"
    AFTER_HASHES = "solutions that end with #### and the answer"
    IN_BOX = r"solutions with the answer in \boxed{}"
    FORMULA = "mathematical expressions"
    WORDS = "a few words"
    TEXT = "free text"


ALSO_READ = {
    AnswerKind.FORMULA: (AnswerKind.NUMBER,),
    AnswerKind.WORDS: (AnswerKind.NUMBER, AnswerKind.LETTER, AnswerKind.BOOLEAN, AnswerKind.YES_NO),
}
"""Kinds that a reward for another kind can read."""


def single_answers(values: Sequence[Any]) -> list[str] | None:
    """Returns each right answer as the text that is compared; None if a value is neither scalar nor a list of scalars."""
    found = list[str]()
    for value in itertools.chain.from_iterable(value if isinstance(value, list) else [value] for value in values):
        if isinstance(value, bool):
            found.append(str(value).lower())
        elif isinstance(value, WrittenFloat):
            found.append(value.written)
        elif isinstance(value, (str, int, float)):
            found.append(str(value))
        else:
            return None
    return found


def kind_of(answers: Sequence[str]) -> AnswerKind:
    """Returns what the answers are; at least one."""
    lower = {answer.strip().lower() for answer in answers}
    if lower <= {"true", "false"}:
        return AnswerKind.BOOLEAN
    if lower <= {"yes", "no"}:
        return AnswerKind.YES_NO
    if all(_NUMBER.fullmatch(answer) for answer in answers):
        return AnswerKind.NUMBER
    if all(_LETTER.fullmatch(answer) for answer in answers):
        return AnswerKind.LETTER
    if _share(answers, lambda answer: bool(_FINAL.search(answer))) == 1:
        return AnswerKind.AFTER_HASHES
    if _share(answers, lambda answer: boxed(answer) is not None) >= MOST_OF:
        return AnswerKind.IN_BOX
    if _share(answers, _is_formula) >= MOST_OF:
        return AnswerKind.FORMULA
    if all(_is_short(answer) for answer in answers):
        return AnswerKind.WORDS
    return AnswerKind.TEXT


def fits(answers: Sequence[str], others: Sequence[str]) -> bool:
    """Returns whether a reward for some answers, the others, can read these as well."""
    kind = kind_of(answers)
    wanted = kind_of(others)
    if placeholders(answers):
        return False
    if kind is not wanted:
        return kind in ALSO_READ.get(wanted, ())
    if kind is AnswerKind.AFTER_HASHES:
        return fits(after_hashes(answers), after_hashes(others))
    return kind is not AnswerKind.LETTER or len(letters_of(answers)) <= len(letters_of(others))


def after_hashes(answers: Sequence[str]) -> list[str]:
    """Returns what is behind the last #### of each solution."""
    return [answer.rpartition("####")[2].strip() for answer in answers]


def are_lists(answers: Sequence[str]) -> bool:
    """Returns whether most answers are the JSON text of a list, which a run compares as a text."""
    return _share(answers, lambda answer: isinstance(parsed(answer, "["), list)) >= MOST_OF


def placeholders(answers: Sequence[str]) -> list[str]:
    """Returns the texts among the answers that stand for an answer that is missing."""
    return sorted({answer.strip() for answer in answers if is_non_answer(answer) or answer.strip().lower() in DOUBTFUL})


def odd_among_numbers(answers: Sequence[str]) -> list[str]:
    """Returns the answers with words among answers that are nearly all numbers."""
    odd = [answer for answer in answers if not _NUMBER.fullmatch(answer)]
    words = [answer for answer in odd if _WORD.search(answer) and not _LATEX.search(answer)]
    return words if len(odd) < (1 - MOST_OF) * len(answers) else []


def are_plain_numbers(answers: Sequence[str]) -> bool:
    """Returns whether all answers are written as numbers are extracted: digits, a point and a minus, nothing else."""
    return all(_PLAIN.fullmatch(answer.strip()) for answer in answers)


def letters_of(answers: Sequence[str]) -> str:
    """Returns the letters up to the last one that occurs, at least A to D."""
    found = [match[1] for answer in answers if (match := _LETTER.fullmatch(answer)) is not None]
    return LETTERS[: max(4, *(LETTERS.index(letter) + 1 for letter in found))]


def are_bare_letters(answers: Sequence[str]) -> bool:
    """Returns whether letters stand alone, without parentheses or points."""
    return all(len(answer.strip()) == 1 for answer in answers)


def _share(answers: Sequence[str], test: Any) -> float:
    return sum(1 for answer in answers if test(answer)) / len(answers)


def _is_formula(answer: str) -> bool:
    """Returns whether an answer is short, and means what mathematics makes of it; LaTeX always does."""
    if len(answer) > LONGEST_FORMULA or "\n" in answer.strip() or _DATE.search(answer):
        return False
    if _LATEX.search(answer):
        return True
    if _NO_FORMULA.search(answer) or _SPANS.fullmatch(answer):
        return False
    return last_number(answer) is not None and set(_NAME.findall(answer.lower())) <= _FUNCTIONS


def _is_short(answer: str) -> bool:
    text = answer.strip()
    return 0 < len(text.split()) <= MOST_WORDS and len(text) <= MOST_CHARACTERS
