"""Whether prompts ask for what the reference answers are: an answer that no prompt asks for makes every response wrong.

Consumes a table, its prompts and its answers. Raises `ConfigurationError` for letters of choices and for numbers or words of
classes that the prompts do not show, for texts that ask nothing, and for answers of which a label says that some are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ops.starter.recognition.answer_kinds import AnswerKind, kind_of, single_answers
from ops.starter.recognition.answer_patterns import Form, asked_form
from ops.starter.recognition.preferences import LABELS
from ops.starter.recognition.prompt_parts import PromptParts
from ops.starter.recognition.recognised import Asked
from ops.starter.recognition.table import Table, value_of
from yatt_core.errors import ConfigurationError

TEXT = "text"
"""A key that is a prompt only beside answers, and only if it asks something: alone, it is text to learn."""
CLASS_KEYS = frozenset({"label", "target", "gold", "gt", "cop", "correct", "answer_idx"})
"""Keys that have the name of a class as often as an answer."""
HIGHEST_CLASS, MOST_CLASSES = 9, 20
"""Of classes with numbers, and of classes with words."""


def check_shown(table: Table, asked: Asked, key: str, parts: PromptParts) -> None:
    """Raises `ConfigurationError` if prompts do not ask for the answers under a key; options that name keys decide."""
    if asked.answer_field is None:
        _refuse_rated(table, key)
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
    return asked_form(texts) is not Form.NONE or _most("?" in text or text.rstrip().endswith(ends) for text in texts)


def _most(tests: Iterable[bool]) -> bool:
    found = list(tests)
    return sum(found) >= len(found) / 2
