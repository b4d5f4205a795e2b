"""The built-in reward that follows from reference answers and from what the prompts ask for: pure functions.

Consumes the answers and the texts of the prompts. Produces a `RewardChoice`. Raises `ConfigurationError` where no built-in
reward can tell a right response from a wrong one: a reward is never invented.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.starter.recognition.answer_kinds import (
    AnswerKind,
    after_hashes,
    are_bare_letters,
    are_lists,
    are_plain_numbers,
    kind_of,
    letters_of,
    odd_among_numbers,
    placeholders,
)
from ops.starter.recognition.answer_patterns import (
    NUMBER,
    AnswerForm,
    asked_form,
    behind,
    last_letter,
    letter,
    one_of,
    rest_of_line,
)
from ops.starter.recognition.recognised import RewardChoice
from yatt_core.errors import ConfigurationError

MATH_PACKAGE = "math_verify"
ASK_BOX = r"Put the final answer in \boxed{}."
ASK_TRUTH = 'End with a line "Answer: " and true or false.'
"""For questions that people answer with yes or no."""
ASK_LINE = 'End with a line "Answer: " and the answer alone.'
WITHOUT_REWARD = (
    "write --reward FILE:FUNCTION for a function of yours (--reward new writes a file to start from), add a judge to a spec "
    "of your own, or use --objective sft to learn the answers as they are"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A reward, and the system message without which prompts do not ask for what it reads."""

    reward: RewardChoice
    system_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class _Answers:
    """Reference answers, and where prompts ask for them.

    texts: the final answers alone.
    hashed: whether they end solutions, behind ####.
    may_ask: whether a system message can ask for a form, if the prompts ask for none.
    """

    texts: Sequence[str]
    hashed: bool
    form: AnswerForm
    may_ask: bool

    @property
    def read(self) -> AnswerForm:
        """Where responses have the answer if those to prompts that ask for nothing end with a line `Answer:`."""
        return AnswerForm.LINE if self.form in (AnswerForm.BEGUN, AnswerForm.NONE) else self.form

    @property
    def forms(self) -> tuple[AnswerForm, ...]:
        """Where responses or references have it."""
        return (self.read, AnswerForm.HASHES) if self.hashed else (self.read,)

    @property
    def ask(self) -> str | None:
        """The system message that asks for a line, if the prompts do not ask for anything."""
        return ASK_LINE if self.form is AnswerForm.NONE and self.may_ask else None


def reward_for(
    key: str, answers: Sequence[str], prompts: Sequence[str], may_ask: bool, are_choices: bool = False
) -> Chosen:
    """Returns the reward that compares responses with the answers under a key.

    answers: at least one.
    may_ask: whether a system message can ask for a form, if the prompts ask for none.
    are_choices: whether the answers are texts that the prompts show to choose from, which responses have to repeat.
    """
    hashed = kind_of(answers) is AnswerKind.AFTER_HASHES
    texts = after_hashes(answers) if hashed else answers
    _check(key, texts)
    given = _Answers(texts, hashed, asked_form(prompts), may_ask)
    kind = kind_of(texts)
    if are_choices and kind is not AnswerKind.NUMBER:
        return _words(given)
    match kind:
        case AnswerKind.NUMBER:
            return _numbers(given)
        case AnswerKind.LETTER:
            return _letters(given)
        case AnswerKind.BOOLEAN:
            named = sum(1 for text in prompts if "true" in text.lower() and "false" in text.lower())
            asks = given.ask is not None and named < len(prompts) / 2
            return _one_of(given, "true|false", AnswerKind.BOOLEAN.value, ASK_TRUTH if asks else None)
        case AnswerKind.YES_NO:
            return _one_of(given, "yes|no", AnswerKind.YES_NO.value)
        case AnswerKind.FORMULA:
            return _formulas(given, boxed=False)
        case AnswerKind.IN_BOX:
            return _formulas(given, boxed=True)
        case AnswerKind.WORDS:
            return _words(given)
        case _:
            raise ConfigurationError(
                f"the answers under {key!r} are free text ({texts[0]!r:.60}), and no built-in reward can tell a right "
                f"response from a wrong one; {WITHOUT_REWARD}"
            )


def _check(key: str, answers: Sequence[str]) -> None:
    """Raises `ConfigurationError` for texts that are no answers, or not written as a run compares them."""
    if missing := placeholders(answers):
        places = [place for place, answer in enumerate(answers, start=1) if answer.strip() in missing]
        raise ConfigurationError(
            f"{len(places)} of the first {len(answers)} answers under {key!r} are {', '.join(map(repr, missing))}, which "
            f"stands for no answer (the first of them is answer {places[0]}); leave these rows out"
        )
    if odd := odd_among_numbers(answers):
        raise ConfigurationError(
            f"the answers under {key!r} are numbers, but for {', '.join(map(repr, odd[:3]))}; write these as a number or as "
            "a list of right answers, or leave the rows out"
        )
    if are_lists(answers):
        raise ConfigurationError(
            f"the answers under {key!r} are JSON texts of lists ({answers[0]!r:.60}), which a run compares as they are "
            f"written; expected a list of right answers, or the answer alone; or {WITHOUT_REWARD}"
        )


def _numbers(given: _Answers) -> Chosen:
    reference = {"extract_reference": "last_number"}
    where = f"numbers {given.form.value}"
    match given.form:
        case AnswerForm.BOX:
            return _equal({"extract": "boxed", **reference}, where)
        case AnswerForm.TAG:
            return _exact({"extract": "tag", **reference}, where)
        case AnswerForm.HASHES | AnswerForm.LINE:
            return _exact({"extract": "pattern", **reference, "pattern": behind([given.form], NUMBER)}, where)
        case _:
            plain = not given.hashed and are_plain_numbers(given.texts)
            return _exact({"extract": "last_number", **({} if plain else reference)}, "the last number")


def _letters(given: _Answers) -> Chosen:
    letters = letters_of(given.texts)
    bare = are_bare_letters(given.texts)
    where = f"the letter {given.read.value}"
    reference = {} if bare and not given.hashed else {"extract_reference": "pattern"}
    if bare and not given.hashed and given.form in (AnswerForm.TAG, AnswerForm.BOX):
        return _exact({"extract": "tag" if given.form is AnswerForm.TAG else "boxed"}, where)
    if given.form is AnswerForm.NONE and not given.may_ask:
        pattern = last_letter(letters)
        where = "the last letter that stands alone"
    else:
        alone = given.form is AnswerForm.BEGUN or not (bare or given.hashed)
        pattern = behind(given.forms, letter(letters), or_at_start=alone)
    return _exact({"extract": "pattern", **reference, "pattern": pattern}, where, given.ask)


def _one_of(given: _Answers, words: str, what: str, asks: str | None = None) -> Chosen:
    reference = {"extract_reference": "pattern"} if given.hashed else {}
    if given.form in (AnswerForm.NONE, AnswerForm.BEGUN):
        where = f"{what}, the last one"
        pattern = rf"(?is).*\b(?P<answer>{words})\b"
    else:
        where = f"{what} {given.form.value}"
        pattern = behind(given.forms, one_of(words))
    return _exact({"extract": "pattern", **reference, "pattern": pattern, "case_sensitive": False}, where, asks)


def _formulas(given: _Answers, boxed: bool) -> Chosen:
    where = f"mathematical expressions {given.form.value}"
    if given.form in (AnswerForm.LINE, AnswerForm.HASHES):
        options = _after_mark(given)
        return _equal({**options, "extract_reference": "boxed"} if boxed else options, where)
    reference = {"extract_reference": "boxed"} if boxed else _reference(given)
    if given.form is AnswerForm.TAG:
        return _equal({"extract": "tag", **reference}, where)
    if given.form is AnswerForm.BOX or given.may_ask:
        asks = None if given.form is AnswerForm.BOX else ASK_BOX
        return _equal({"extract": "boxed", **reference}, f"mathematical expressions {AnswerForm.BOX.value}", asks)
    return _equal(reference, "the last mathematical expression")


def _words(given: _Answers) -> Chosen:
    insensitive = {"case_sensitive": False}
    where = f"the text {given.form.value}"
    match given.form:
        case AnswerForm.TAG:
            return _exact({"extract": "tag", **_reference(given), **insensitive}, where)
        case AnswerForm.BOX:
            return _exact({"extract": "boxed", **_reference(given), **insensitive}, where)
        case AnswerForm.LINE | AnswerForm.HASHES:
            return _exact({**_after_mark(given), **insensitive}, where)
        case _:
            options = _after_mark(given, or_at_start=True)
            return _exact({**options, **insensitive}, f"the text {AnswerForm.LINE.value}, or the first line", given.ask)


def _after_mark(given: _Answers, or_at_start: bool = False) -> dict[str, Any]:
    """Returns options that read the rest of the line behind a mark."""
    ends = "" if any(answer.rstrip().endswith(".") for answer in given.texts) else "."
    reference = {"extract_reference": "pattern"} if given.hashed else {}
    return {"extract": "pattern", **reference, "pattern": behind(given.forms, rest_of_line(ends), or_at_start)}


def _reference(given: _Answers) -> dict[str, Any]:
    """Returns options that read the reference answers alone, behind their #### if they have one."""
    if not given.hashed:
        return {}
    return {"extract_reference": "pattern", "pattern": behind([AnswerForm.HASHES], rest_of_line(""))}


def _exact(options: Mapping[str, Any], reads: str, asks: str | None = None) -> Chosen:
    return Chosen(RewardChoice(name="correct", function="exact_match", reads=reads, options=dict(options)), asks)


def _equal(options: Mapping[str, Any], reads: str, asks: str | None = None) -> Chosen:
    if importlib.util.find_spec(MATH_PACKAGE) is None:
        raise ConfigurationError(
            f"the reward compares {reads} by math_equal, which needs a package that is not installed: pip install 'yatt[math]'"
        )
    return Chosen(RewardChoice(name="correct", function="math_equal", reads=reads, options=dict(options)), asks)
