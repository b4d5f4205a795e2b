"""Answers to choose from, in the forms in which data sets write them: pure functions.

Consumes a table. Produces how a prompt shows them. A question is never asked without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.starter.recognition.answer_kinds import LETTERS
from ops.starter.recognition.table import Table, value_of
from yatt_core.errors import ConfigurationError

KEYS = ("choices", "options", "endings", "answer_choices", "candidates")
ANSWERS = (
    "answerKey",
    "answer",
    "label",
    "correct",
    "correct_option",
    "correct_answer",
    "answer_idx",
    "gold",
    "target",
    "cop",
)
FORMS = ("{}", "option_{}", "op{}", "choice_{}", "answer_{}")
ASKS = '\nEnd with a line "Answer: " and the {} choice.'
ASKS_LETTER, ASKS_NUMBER, ASKS_TEXT = (
    ASKS.format(what) for what in ("letter of the right", "number of the right", "right")
)
_NAME = re.compile(r"[^\W\d]\w*")
_LABELLED = re.compile(r"\s*\(?[A-J][).:]")


@dataclass(frozen=True, slots=True)
class Choices:
    """Answers to choose from.

    key: the key of the row that has them; of several, the first.
    template: the part of a Jinja template that shows them behind the question, and asks for the answer.
    asks: how the prompt asks for the answer.
    used: all keys that have them.
    """

    key: str
    template: str
    asks: str
    used: tuple[str, ...]


def named(key: str) -> str:
    """Returns how a template names a key of the row."""
    return key if all(map(_NAME.fullmatch, key.split("."))) else f"row[{json.dumps(key)}]"


def choices_of(table: Table, question: str) -> Choices | None:
    """Returns the answers to choose from; None if there are none, or if the question has them already."""
    key = next((key for key in table.all(*KEYS) if table.values(key)), None)
    if key is None:
        return _columns(table)
    rows = [row for row in table.rows if value_of(row, key)]
    values = [value_of(row, key) for row in rows]
    if all(_shown(value_of(row, question), value_of(row, key)) for row in rows):
        return None
    if all(isinstance(value, Mapping) and {"text", "label"} <= set(value) for value in values):
        line = f"{{{{ label }}}}. {{{{ {named(key)}.text[loop.index0] }}}}\n"
        shown = f"{{% for label in {named(key)}.label %}}{line}{{% endfor %}}"
        return _made(key, shown, ASKS_LETTER)
    if all(isinstance(value, Mapping) and _are_letters(value) for value in values):
        line = "{% if choice %}{{ letter }}. {{ choice }}\n{% endif %}"
        shown = f"{{% for letter, choice in {named(key)} | dictsort %}}{line}{{% endfor %}}"
        return _made(key, shown, ASKS_LETTER)
    if all(isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value) for value in values):
        return _list(table, key, values)
    raise ConfigurationError(
        f"the choices under {key!r} have a form that is not known; expected a list of texts, {{text: [...], "
        "label: [...]}}, or an "
        "object with the letters as keys (--prompt-field names a key whose text has question and choices)"
    )


def _list(table: Table, key: str, values: Sequence[Sequence[Any]]) -> Choices:
    """Returns choices that are a list, called as the answers call them: by their text, by letter, or by number."""
    answer = next((name for name in table.all(*ANSWERS) if table.values(name)), None)
    answers = table.values(answer) if answer else []
    labelled = all(_LABELLED.match(str(one)) for value in values for one in value)
    if answer and all(value_of(row, answer) in (value_of(row, key) or ()) for row in table.rows):
        shown = f"{{% for choice in {named(key)} %}}{'' if labelled else '- '}{{{{ choice }}}}\n{{% endfor %}}"
        return _made(key, shown, ASKS_TEXT)
    if labelled:
        return _made(key, f"{{% for choice in {named(key)} %}}{{{{ choice }}}}\n{{% endfor %}}", ASKS_LETTER)
    if answers and all(map(_is_letter, answers)):
        shown = (
            f"{{% for choice in {named(key)} %}}{{{{ '{LETTERS}'[loop.index0] }}}}. {{{{ choice }}}}\n{{% endfor %}}"
        )
        return _made(key, shown, ASKS_LETTER)
    first = _first_number(answers, max(map(len, values)), key, answer)
    count = "loop.index" if first else "loop.index0"
    return _made(
        key, f"{{% for choice in {named(key)} %}}{{{{ {count} }}}}. {{{{ choice }}}}\n{{% endfor %}}", ASKS_NUMBER
    )


def _first_number(answers: Sequence[Any], most: int, key: str, answer: str | None) -> int:
    """Returns whether answers count the choices from 0 or from 1. Raises `ConfigurationError` if that is not clear."""
    numbers = _numbers(answers)
    if numbers and min(numbers) == 0 and max(numbers) < most:
        return 0
    if numbers and min(numbers) >= 1 and max(numbers) == most:
        return 1
    raise ConfigurationError(
        f"which of the choices under {key!r} is right is not clear from {answer or 'any key'!r}; expected a "
        "letter, the text of "
        "the right choice, or its number, with 0 or the number of choices among the numbers"
    )


def _columns(table: Table) -> Choices | None:
    """Returns choices that have a key each: `A` to `D`, `option_a`, `choice_a` and the like."""
    for form in FORMS:
        found = [table.find(form.format(letter.lower())) for letter in LETTERS[:6]]
        keys = [key for key in found if key is not None]
        if len(keys) < 2 or found[:2] != keys[:2] or not all(table.mostly(key, _is_choice) for key in keys[:2]):
            continue
        answer = next((name for name in table.all(*ANSWERS) if table.values(name)), None)
        answers = table.values(answer) if answer else []
        names: Sequence[str] = LETTERS
        asks = ASKS_LETTER
        if not all(map(_is_letter, answers)):
            first = _first_number(answers, len(keys), keys[0], answer)
            names = [str(first + number) for number in range(len(keys))]
            asks = ASKS_NUMBER
        shown = "".join(f"{name}. {{{{ {named(key)} }}}}\n" for name, key in zip(names, keys, strict=False))
        return Choices(keys[0], f"\n\n{shown}{asks}", asks, tuple(keys))
    return None


def _made(key: str, shown: str, asks: str) -> Choices:
    return Choices(key, f"\n\n{shown}{asks}", asks, (key,))


def _is_choice(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _numbers(values: Sequence[Any]) -> list[int]:
    """Returns the values as whole numbers; none if one of them is not."""
    found = [str(value) for value in values if not isinstance(value, bool)]
    return [int(value) for value in found] if found and all(value.isdecimal() for value in found) else []


def _is_letter(value: Any) -> bool:
    return isinstance(value, str) and value.strip().strip("().") in tuple(LETTERS)


def _are_letters(value: Mapping[str, Any]) -> bool:
    return len(value) > 1 and all(len(key) == 1 and key.upper() in LETTERS for key in value)


def _shown(question: Any, choices: Any) -> bool:
    """Returns whether a question has the texts of its choices already."""
    if isinstance(choices, Mapping):
        choices = choices.get("text", list(choices.values()))
    if not isinstance(choices, list) or not isinstance(question, str):
        return False
    return all(str(choice) in question for choice in choices)
