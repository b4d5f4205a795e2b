r"""Where responses give their answer, as prompts ask for it, in RE2 expressions: pure functions.

Consumes a form and what an answer looks like. Produces patterns with the group `answer`. People and models write an answer in
bold, in \boxed{}, between signs of mathematics, and with words behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum

from ops.starter.recognition.table import MOST_OF

_LINE = re.compile(r"\banswer:\s*\S", re.IGNORECASE)
_BEGUN = re.compile(r"\banswer:\s*$", re.IGNORECASE)
_FRAMES = r"(?:\\(?:boxed|text\w*|math\w*)\{|\\?[(\[$€£]|[\s*_])*"
"""What may stand before a number or a letter."""
_DIGITS = r"[-+\x{2212}\x{2013}]?[$€£]?[0-9,]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
# Behind a number: nothing that makes it a part of another one, of a fraction, a power or a sum. RE2 cannot look ahead.
_END = r"[.,]*[ \t\r]*(?:[^\s0-9.,/^+*-]|[*-]\D|\n|\z)"
NUMBER = rf"{_FRAMES}(?P<answer>{_DIGITS}){_END}"


class AnswerForm(Enum):
    """Where prompts ask for the answer, in words."""

    HASHES = 'after "####"'
    TAG = "in <answer>"
    BOX = r"in \boxed{}"
    LINE = 'after "Answer:"'
    BEGUN = 'behind the "Answer:" of the prompt'
    NONE = "anywhere"


MARKS = {
    AnswerForm.HASHES: "####",
    AnswerForm.TAG: "<answer>",
    AnswerForm.BOX: r"\\boxed\{",
    AnswerForm.LINE: r"(?i:\banswer)\W*?:",
}
"""What stands before an answer; behind `answer` there may be the signs of bold print."""


def asked_form(prompts: Sequence[str]) -> AnswerForm:
    """Returns where most of the prompts ask for the answer."""
    tests: dict[AnswerForm, Callable[[str], bool]] = {
        AnswerForm.HASHES: lambda text: "####" in text,
        AnswerForm.TAG: lambda text: "<answer>" in text,
        AnswerForm.BOX: lambda text: "\\boxed" in text,
        AnswerForm.BEGUN: lambda text: _BEGUN.search(text) is not None,
        AnswerForm.LINE: lambda text: _LINE.search(text) is not None,
    }
    for form, test in tests.items():
        if sum(map(test, prompts)) >= MOST_OF * len(prompts):
            return form
    return AnswerForm.NONE


def behind(forms: Sequence[AnswerForm], what: str, or_at_start: bool = False) -> str:
    """Returns a pattern of what stands behind the last mark of one of the forms.

    or_at_start: whether it may also begin the text if there is no mark.
    """
    marks = list(dict.fromkeys(MARKS[form] for form in forms))
    last = f".*{marks[0]}" if len(marks) == 1 else f".*(?:{'|'.join(marks)})"
    start = rf"(?:{last}|\A)" if or_at_start else last
    return f"(?s){start}{what}"


def letter(letters: str) -> str:
    """Returns a pattern of one of the letters that name choices."""
    return rf"{_FRAMES}(?P<answer>[{letters}])\b"


def last_letter(letters: str) -> str:
    """Returns a pattern of the last letter that ends a line or has a sign behind it, as the article `A` does not."""
    return rf"(?s).*\b(?P<answer>[{letters}])(?:[^\w\s]|[ \t]*(?:[\r\n]|\z))"


def one_of(words: str) -> str:
    """Returns a pattern of one of the words, in any spelling of their letters."""
    return rf"{_FRAMES}(?P<answer>(?i:{words}))\b"


def rest_of_line(ends: str) -> str:
    """Returns a pattern of the rest of a line, without bold print and without further signs at its end."""
    return rf"[\s*]*(?P<answer>[^\n]*?[^\s*{ends}])[\s*{ends}]*(?:\n|\z)"
