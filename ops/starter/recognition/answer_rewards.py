"""The built-in reward that follows from reference answers and from what the prompts ask for: pure functions.

Consumes the answers and the texts of the prompts. Produces a `RewardChoice`. Raises `ConfigurationError` where no built-in
reward can tell a right response from a wrong one: a reward is never invented.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ops.starter.recognition.answer_kinds import (
    AnswerKind,
    are_bare_letters,
    are_plain_numbers,
    kind_of,
    letters_of,
    odd_among_numbers,
    placeholders,
)
from ops.starter.recognition.recognised import Abilities, RewardChoice
from ops.starter.recognition.table import MOST_OF
from yatt_core.errors import ConfigurationError

MATH_PACKAGE = "math_verify"
NUMBER = r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?"
HASHES = rf"(?s).*####\s*\$?(?P<answer>{NUMBER})"
_LINE, _BEGUN = re.compile(r"\banswer:\s*\S", re.IGNORECASE), re.compile(r"\banswer:\s*$", re.IGNORECASE)
ASK_BOX = r"Put the final answer in \boxed{}."
LATEST = "(?s).*"
"""Begins a pattern that finds the last of several matches."""
WITHOUT_REWARD = (
    "write --reward FILE:FUNCTION for a function of yours (--reward new writes a file to start from), add a "
    "judge to a spec of "
    "your own, or use --objective sft to learn the answers as they are"
)


class Form(Enum):
    """Where prompts ask for the answer, in words."""

    HASHES = 'after "####"'
    TAG = "in <answer>"
    BOX = r"in \boxed{}"
    LINE = 'after "Answer:"'
    NONE = "anywhere"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A reward, and the system message without which prompts do not ask for what it reads."""

    reward: RewardChoice
    system_prompt: str | None = None


def asked_form(prompts: Sequence[str]) -> Form:
    """Returns where most of the prompts ask for the answer."""
    tests: dict[Form, Callable[[str], bool]] = {
        Form.HASHES: lambda text: "####" in text,
        Form.TAG: lambda text: "<answer>" in text,
        Form.BOX: lambda text: "\\boxed" in text,
        Form.LINE: _asks_for_a_line,
    }
    for form, test in tests.items():
        if sum(map(test, prompts)) >= MOST_OF * len(prompts):
            return form
    return Form.NONE


def reward_for(key: str, answers: Sequence[str], prompts: Sequence[str], model: Abilities) -> Chosen:
    """Returns the reward that compares responses with the answers under a key.

    answers: at least one.
    """
    if missing := placeholders(answers):
        raise ConfigurationError(
            f"some answers under {key!r} are {', '.join(map(repr, missing))}, which stands for no answer; leave "
            "these rows out"
        )
    if odd := odd_among_numbers(answers):
        raise ConfigurationError(
            f"the answers under {key!r} are numbers, but for {', '.join(map(repr, odd[:3]))}; write these as a "
            "number or as a list "
            "of right answers, or leave the rows out"
        )
    kind = kind_of(answers)
    form = asked_form(prompts)
    match kind:
        case AnswerKind.NUMBER | AnswerKind.AFTER_HASHES:
            return _numbers(kind, answers, form)
        case AnswerKind.LETTER:
            return _letters(answers, form)
        case AnswerKind.BOOLEAN | AnswerKind.YES_NO:
            words = "true|false" if kind is AnswerKind.BOOLEAN else "yes|no"
            return _one_of(kind, words, form)
        case AnswerKind.FORMULA | AnswerKind.IN_BOX:
            return _formulas(kind, form, model)
        case AnswerKind.WORDS:
            return _words(form)
        case AnswerKind.TEXT:
            raise ConfigurationError(
                f"the answers under {key!r} are free text ({answers[0]!r:.60}), and no built-in reward can tell a "
                "right response "
                f"from a wrong one; {WITHOUT_REWARD}"
            )


def _asks_for_a_line(prompt: str) -> bool:
    """Returns whether a prompt names a line "Answer:" that the response has to write; one that ends with it has begun that."""
    return _LINE.search(prompt) is not None and _BEGUN.search(prompt) is None


def _numbers(kind: AnswerKind, answers: Sequence[str], form: Form) -> Chosen:
    if form is Form.BOX:
        return _equal({"extract": "boxed", "extract_reference": "last_number"}, f"numbers {form.value}")
    options: dict[str, Any] = {"extract_reference": "last_number"}
    reads = f"numbers {form.value}"
    if form is Form.HASHES:
        options = {"extract": "pattern", **options, "pattern": HASHES}
    elif form is Form.LINE:
        options = {"extract": "pattern", **options, "pattern": _after_answer(rf"\$?(?P<answer>{NUMBER})")}
    elif form is Form.TAG:
        options = {"extract": "tag", **options}
    else:
        plain = kind is AnswerKind.NUMBER and are_plain_numbers(answers)
        options = {"extract": "last_number", **({} if plain else options)}
        reads = "the last number"
    return _exact(options, reads)


def _letters(answers: Sequence[str], form: Form) -> Chosen:
    letters = letters_of(answers)
    reads = f"the letter {form.value}"
    if form is Form.BOX and are_bare_letters(answers):
        return _exact({"extract": "boxed"}, reads)
    if form is Form.TAG and are_bare_letters(answers):
        return _exact({"extract": "tag"}, reads)
    if form is Form.LINE:
        options = {"extract": "pattern", "pattern": _after_answer(rf"\(?(?P<answer>[{letters}])\b")}
    else:
        options = {"extract": "pattern", "pattern": rf"{LATEST}\b(?P<answer>[{letters}])\b"}
        reads = "the last letter that stands alone"
    if not are_bare_letters(answers):
        options = {"extract": "pattern", "extract_reference": "pattern", "pattern": options["pattern"]}
    return _exact(options, reads)


def _one_of(kind: AnswerKind, words: str, form: Form) -> Chosen:
    pattern = _after_answer(rf"(?P<answer>{words})\b") if form is Form.LINE else rf"(?is).*\b(?P<answer>{words})\b"
    options = {"extract": "pattern", "pattern": pattern, "case_sensitive": False}
    return _exact(options, f"{kind.value}, the last one" if form is not Form.LINE else f"{kind.value} {form.value}")


def _formulas(kind: AnswerKind, form: Form, model: Abilities) -> Chosen:
    reference = {"extract_reference": "boxed"} if kind is AnswerKind.IN_BOX else {}
    if form is Form.LINE:
        options = {"extract": "pattern", **reference, "pattern": _after_answer(r"(?P<answer>[^\n]+)")}
        return _equal(options, f"mathematical expressions {form.value}")
    if form is Form.TAG:
        return _equal({"extract": "tag", **reference}, f"mathematical expressions {form.value}")
    if form is Form.BOX or model.system:
        asks = None if form is Form.BOX else ASK_BOX
        return _equal({"extract": "boxed", **reference}, f"mathematical expressions {Form.BOX.value}", asks)
    return _equal(reference, "the last mathematical expression")


def _words(form: Form) -> Chosen:
    options: dict[str, Any] = {}
    reads = f"the text {form.value}"
    if form is Form.LINE:
        options = {"extract": "pattern", "pattern": _after_answer(r"(?P<answer>[^\n]+)"), "extract_reference": "whole"}
    elif form is Form.TAG:
        options = {"extract": "tag"}
    elif form is Form.BOX:
        options = {"extract": "boxed"}
    else:
        reads = "the whole response as text"
    return _exact({**options, "case_sensitive": False}, reads)


def _after_answer(what: str) -> str:
    """Returns a pattern of what follows the last "Answer:", also where it is printed in bold."""
    return rf"(?is).*\banswer\W*?:\s*\**\s*{what}"


def _exact(options: Mapping[str, Any], reads: str) -> Chosen:
    return Chosen(RewardChoice(name="correct", function="exact_match", reads=reads, options=dict(options)))


def _equal(options: Mapping[str, Any], reads: str, asks: str | None = None) -> Chosen:
    if importlib.util.find_spec(MATH_PACKAGE) is None:
        raise ConfigurationError(
            f"the reward compares {reads} by math_equal, which needs a package that is not installed: pip install "
            "'yatt[math]'"
        )
    return Chosen(RewardChoice(name="correct", function="math_equal", reads=reads, options=dict(options)), asks)
