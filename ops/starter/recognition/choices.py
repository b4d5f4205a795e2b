"""Answers to choose from, in the forms in which data sets write them: pure functions.

Consumes a table. Produces how a prompt shows them. A question is never asked without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.starter.recognition.answer_kinds import LETTERS
from ops.starter.recognition.table import Table, value_of
from yatt_core.errors import ConfigurationError

KEYS = ("choices", "options", "endings", "answer_choices", "candidates")
ANSWERS = ("answerKey", "answer", "label", "correct", "correct_option", "correct_answer", "answer_idx", "gold", "target")
ASKS = '\nEnd with a line "Answer: " and the {} choice.'
ASKS_LETTER, ASKS_NUMBER, ASKS_TEXT = (ASKS.format(what) for what in ("letter of the right", "number of the right", "right"))
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
        shown = f"{{% for label in {key}.label %}}{{{{ label }}}}. {{{{ {key}.text[loop.index0] }}}}\n{{% endfor %}}"
        return _made(key, shown, ASKS_LETTER)
    if all(isinstance(value, Mapping) and _are_letters(value) for value in values):
        shown = f"{{% for letter, choice in {key} | dictsort %}}{{% if choice %}}{{{{ letter }}}}. {{{{ choice }}}}\n{{% endif %}}{{% endfor %}}"
        return _made(key, shown, ASKS_LETTER)
    if all(isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value) for value in values):
        return _list(table, key, values)
    raise ConfigurationError(
        f"the choices under {key!r} have a form that is not known; expected a list of texts, {{text: [...], label: [...]}}, or an "
        "object with the letters as keys (--prompt-field names a key whose text has question and choices)"
    )


def _list(table: Table, key: str, values: Sequence[Sequence[Any]]) -> Choices:
    """Returns choices that are a list, called as the answers call them: by letter, by number, or by their text."""
    if all(_LABELLED.match(str(one)) for value in values for one in value):
        return _made(key, f"{{% for choice in {key} %}}{{{{ choice }}}}\n{{% endfor %}}", ASKS_LETTER)
    answer = next((name for name in table.all(*ANSWERS) if table.values(name)), None)
    answers = table.values(answer) if answer else []
    pairs = [(value_of(row, answer), value_of(row, key)) for row in table.rows] if answer else []
    most = max(map(len, values))
    if answers and all(isinstance(value, str) and len(value.strip("().")) == 1 and value.strip("().").isupper() for value in answers):
        shown = f"{{% for choice in {key} %}}{{{{ '{LETTERS}'[loop.index0] }}}}. {{{{ choice }}}}\n{{% endfor %}}"
        return _made(key, shown, ASKS_LETTER)
    if pairs and all(value in choices for value, choices in pairs):
        return _made(key, f"{{% for choice in {key} %}}- {{{{ choice }}}}\n{{% endfor %}}", ASKS_TEXT)
    numbers = _numbers(answers)
    if numbers and min(numbers) == 0 and max(numbers) < most:
        count = "loop.index0"
    elif numbers and min(numbers) >= 1 and max(numbers) == most:
        count = "loop.index"
    else:
        raise ConfigurationError(
            f"which of the choices under {key!r} is right is not clear from {answer or 'any key'!r}; expected a letter, the text of "
            "the right choice, or its number, with 0 or the number of choices among the numbers"
        )
    return _made(key, f"{{% for choice in {key} %}}{{{{ {count} }}}}. {{{{ choice }}}}\n{{% endfor %}}", ASKS_NUMBER)


def _columns(table: Table) -> Choices | None:
    """Returns choices that have a key each: `A` to `D`, `option_a`, `choice_a` and the like."""
    for form in ("{}", "option_{}", "op{}", "choice_{}", "option {}"):
        found = [table.find(form.format(letter.lower())) for letter in LETTERS[:6]]
        keys = [key for key in found if key is not None]
        if found[:2] == keys[:2] and len(keys) >= 2 and all(table.mostly(key, _is_choice) for key in keys[:2]):
            shown = "".join(f"{LETTERS[number]}. {{{{ {key} }}}}\n" for number, key in enumerate(keys))
            made = _made(keys[0], shown, ASKS_LETTER)
            return Choices(made.key, made.template, made.asks, tuple(keys))
    return None


def _made(key: str, shown: str, asks: str) -> Choices:
    return Choices(key, f"\n\n{shown}{asks}", asks, (key,))


def _is_choice(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _numbers(values: Sequence[Any]) -> list[int]:
    """Returns the values as whole numbers; none if one of them is not."""
    found = [str(value) for value in values if not isinstance(value, bool)]
    return [int(value) for value in found] if found and all(value.isdecimal() for value in found) else []


def _are_letters(value: Mapping[str, Any]) -> bool:
    return len(value) > 1 and all(len(key) == 1 and key.upper() in LETTERS for key in value)


def _shown(question: Any, choices: Any) -> bool:
    """Returns whether a question has the texts of its choices already."""
    if isinstance(choices, Mapping):
        choices = choices.get("text", list(choices.values()))
    if not isinstance(choices, list) or not isinstance(question, str):
        return False
    return all(str(choice) in question for choice in choices)
