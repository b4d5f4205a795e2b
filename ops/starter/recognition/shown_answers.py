"""Whether prompts ask for what the reference answers are: an answer that no prompt asks for makes every response wrong.

Consumes a table, its prompts and its answers. Raises `ConfigurationError` for letters of choices and for numbers or words of
classes that the prompts do not show, for texts that ask nothing, for prompts that ask for other words or end with their answer,
and for answers of which a label says that some are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ops.starter.recognition.answer_kinds import AnswerKind, after_hashes, kind_of, single_answers
from ops.starter.recognition.answer_patterns import AnswerForm, asked_form
from ops.starter.recognition.preferences import LABELS
from ops.starter.recognition.prompt_parts import PromptParts
from ops.starter.recognition.recognised import RecognitionOptions
from ops.starter.recognition.table import Table, value_of
from yatt_core.errors import ConfigurationError
from yatt_core.rewards.extraction import boxed

TEXT = "text"
"""A key that is a prompt only beside answers, and only if it asks something: alone, it is text to learn."""
CLASS_KEYS = frozenset({"label", "target", "gold", "gt", "cop", "correct", "answer_idx"})
"""Keys that have the name of a class as often as an answer."""
HIGHEST_CLASS = 9
MOST_CLASSES = 20
"""Of classes with numbers, and of classes with words."""
_BETWEEN = r"""["'`*]{0,2}\s*(?:,?\s*(?:or|and)|/|,|\|)\s*["'`*]{0,2}"""
_EITHER = {
    kind: re.compile(rf"\b(?:{first}{_BETWEEN}{second}|{second}{_BETWEEN}{first})\b", re.IGNORECASE)
    for kind, first, second in ((AnswerKind.BOOLEAN, "true", "false"), (AnswerKind.YES_NO, "yes", "no"))
}
"""How prompts ask for one of two words."""
_OTHER_WORDS = {AnswerKind.BOOLEAN: AnswerKind.YES_NO, AnswerKind.YES_NO: AnswerKind.BOOLEAN}
_MARK = r"(?:\banswer\b(?:\s+is)?\W*|####\s*|<answer>\s*|\\boxed\{\s*)"
"""What stands before the answer at the end of a solved prompt."""


def check_shown(table: Table, asked: RecognitionOptions, key: str, parts: PromptParts) -> None:
    """Raises `ConfigurationError` if prompts do not ask for the answers under a key; options that name keys decide."""
    if asked.answer_field is None:
        _refuse_rated(table, key)
    _refuse_solved(table, key, parts)
    _refuse_other_words(table, key, parts)
    if asked.prompt_field is not None or parts.choices is not None:
        return
    if parts.used[0].lower() == TEXT and not _ask(parts.texts):
        raise ConfigurationError(
            f"the texts under {parts.used[0]!r} ask nothing, so {key!r} labels them and is no answer; expected questions or "
            f"instructions (--prompt-field {parts.used[0]} takes the texts as they are), or --objective sft to learn the "
            "texts"
        )
    values = table.values(key)
    answers = single_answers(values) or []
    if not answers or "image_field" in parts.source:
        return
    if kind_of(answers) is AnswerKind.LETTER and not _most(
        re.search(r"\bB\b", text) is not None for text in parts.texts
    ):
        raise ConfigurationError(
            f"the answers under {key!r} are letters of choices, and the prompts under {parts.used[0]!r} do not show these; "
            "expected 'choices' (a list of texts, or an object with the letters as keys), or prompts that show them"
        )
    if asked.answer_field is not None or any(isinstance(value, list) for value in values):
        return
    classes = sorted(set(answers))
    if _are_classes(key, answers) and not _most_name(parts.texts, classes):
        raise ConfigurationError(
            f"the answers under {key!r} name classes ({', '.join(map(repr, classes[:4]))}), and the prompts under "
            f"{parts.used[0]!r} do not say what these are called; expected prompts that name them, or 'choices' "
            f"(--answer-field {key} takes the answers as they are)"
        )


def _refuse_rated(table: Table, key: str) -> None:
    """Raises `ConfigurationError` for answers beside a label that is true for some and false for others."""
    for label in table.all(*LABELS):
        values = [value_of(row, label) for row in table.rows]
        if label != key and all(isinstance(value, bool) for value in values) and len(set(values)) > 1:
            raise ConfigurationError(
                f"it is not clear whether {label!r} says which of the answers under {key!r} are right; leave out the rows "
                f"with wrong ones, or add --objective rl --answer-field {key} if all are right"
            )


def _refuse_solved(table: Table, key: str, parts: PromptParts) -> None:
    """Raises `ConfigurationError` if most prompts end with their own answers, which differ: examples of a form do not."""
    found = [_solves(text, value_of(row, key)) for row, text in zip(table.rows, parts.texts, strict=True)]
    solved = [answer for answer in found if answer is not None]
    if len(set(solved)) > 1 and len(solved) > len(found) / 2:
        raise ConfigurationError(
            f"{len(solved)} of the first {len(found)} prompts under {parts.used[0]!r} end with their own answer "
            f"({parts.texts[found.index(solved[0])][-60:]!r}), which a response only has to repeat; leave it out of the prompts"
        )


def _solves(text: str, value: Any) -> str | None:
    """Returns the answer of a row if its prompt ends with it, behind a mark; otherwise None."""
    for answer in after_hashes(single_answers([value]) or []):
        final = answer if (in_box := boxed(answer)) is None else in_box
        if final and re.search(rf"{_MARK}{re.escape(final)}(?:</answer>|\W)*$", text[-1_000:], re.IGNORECASE):
            return final
    return None


def _refuse_other_words(table: Table, key: str, parts: PromptParts) -> None:
    """Raises `ConfigurationError` if prompts ask for yes or no and the answers are true or false, or the other way round."""
    answers = single_answers(table.values(key)) or []
    kind = kind_of(answers) if answers else None
    if kind is None or (other := _OTHER_WORDS.get(kind)) is None:
        return
    wrong = [bool(_EITHER[other].search(text)) and not _EITHER[kind].search(text) for text in parts.texts]
    if any(wrong):
        raise ConfigurationError(
            f"the answers under {key!r} are {kind.value}, and {sum(wrong)} of the first {len(wrong)} prompts under "
            f"{parts.used[0]!r} ask for {other.value} (row {wrong.index(True) + 1}), which would never be right; write these "
            "answers as the prompts ask for them, in all rows alike"
        )


def _are_classes(key: str, answers: Sequence[str]) -> bool:
    """Returns whether a few answers occur again and again, as numbers or names of classes do."""
    different = set(answers)
    is_class_key = key.strip().lower() in CLASS_KEYS
    if len(different) > len(answers) / 2:
        return False
    if all(re.fullmatch(r"-?\d", answer) for answer in different):
        numbers = sorted(map(int, different))
        follow_each_other = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        signs = numbers == [-1, 1]
        if numbers in ([0, 1], [-1, 0, 1]) or signs:
            return True
        return is_class_key and numbers[0] in (0, 1) and numbers[-1] <= HIGHEST_CLASS and follow_each_other
    return is_class_key and kind_of(answers) is AnswerKind.WORDS and len(different) <= MOST_CLASSES


def _most_name(texts: Sequence[str], classes: Sequence[str]) -> bool:
    """Returns whether most texts have all names of the classes, as words of their own."""
    patterns = [re.compile(rf"(?<!\w){re.escape(name.strip())}(?!\w)", re.IGNORECASE) for name in classes]
    return _most(all(pattern.search(text) for pattern in patterns) for text in texts)


def _ask(texts: Sequence[str]) -> bool:
    ends = ("?", ":", "\uff1f", "\uff1a")
    return asked_form(texts) is not AnswerForm.NONE or _most(
        "?" in text or text.rstrip().endswith(ends) for text in texts
    )


def _most(tests: Iterable[bool]) -> bool:
    found = list(tests)
    return sum(found) >= len(found) / 2
