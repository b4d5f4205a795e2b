"""Answers to choose from, in the forms in which data sets write them: pure functions.

Consumes a table. Produces how a prompt shows them. A question is never asked without them, and never asks for anything but what
the reference answers have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ops.starter.recognition.answer_kinds import LETTERS
from ops.starter.recognition.table import Table, value_of
from yatt_core.errors import ConfigurationError

KEYS = ("choices", "options", "endings", "answer_choices", "candidates")
FORMS = ("{}", "option_{}", "op{}", "choice_{}", "answer_{}", "ending_{}", "sol{}")
NUMBERS = ("012345", "123456")
"""What follows in names of keys that count the choices instead of giving each a letter."""
ASKS = '\nEnd with a line "Answer: " and the {} choice.'
_NAME = re.compile(r"[^\W\d]\w*")
_LABELLED = re.compile(r"\s*\(?([A-J])[).:]")


class Called(Enum):
    """What answers call the right choice by."""

    NAME = "name"
    TEXT = "text"
    FROM_0 = "number from 0"
    FROM_1 = "number from 1"


@dataclass(frozen=True, slots=True)
class AnswerChoices:
    """Answers to choose from.

    key: the key of the row that has them; of several, the first.
    template: the part of a Jinja template that shows them behind the question, and asks for the answer.
    asks: how the prompt asks for the answer; empty if it does not.
    used: all keys that have them.
    by_text: whether answers are the texts of the right choices.
    """

    key: str
    template: str
    asks: str
    used: tuple[str, ...]
    by_text: bool


@dataclass(frozen=True, slots=True)
class _Offered:
    """The choices of a data set.

    lines: the part of a template that shows them, by what the answers call them.
    names, texts: of each row; a name is a letter, a number or another label.
    usual: how they are shown if no answer calls them by anything.
    """

    keys: tuple[str, ...]
    lines: Mapping[Called, str]
    names: Sequence[Sequence[str]]
    texts: Sequence[Sequence[Any]]
    usual: Called = Called.NAME


def named(key: str) -> str:
    """Returns how a template names a key of the row."""
    return key if all(map(_NAME.fullmatch, key.split("."))) else f"row[{json.dumps(key)}]"


def choices_of(table: Table, question: str, answer: str | None, asks: bool) -> AnswerChoices | None:
    """Returns the answers to choose from; None if there are none, or if the question has them already.

    answer: the key whose values say which of them is right; None if there is none.
    asks: whether the prompt has to ask for what this key has.
    """
    offered = _offered(table)
    if offered is None:
        return None
    called = None if answer is None else _called(table, offered, answer)
    shown = _are_shown(table, question, offered)
    by_number = called in (Called.FROM_0, Called.FROM_1)
    if asks and (called not in offered.lines or (shown and by_number)):
        raise ConfigurationError(
            f"which of the choices under {offered.keys[0]!r} is right is not clear from {answer!r}; expected the letter or "
            "the label that a choice has in the prompt, the text of the right choice, or its number, with 0 or the number "
            "of choices among the numbers (--prompt-field names a key whose text has question and choices)"
        )
    if shown:
        return None
    how = called if called is not None and called in offered.lines else offered.usual
    asking = _asking(offered, how) if asks else ""
    template = f"\n\n{offered.lines[how]}{asking}"
    return AnswerChoices(
        key=offered.keys[0],
        template=template,
        asks=asking,
        used=offered.keys,
        by_text=how is Called.TEXT,
    )


def answer_among(table: Table, keys: Sequence[str]) -> str | None:
    """Returns the key that says which choice is right, best by its name; None without choices, and if no key does.

    keys: those that may have answers, in order of preference.
    """
    offered = _offered(table)
    if offered is None:
        return None
    found = {key: _called(table, offered, key) for key in keys}
    return next((key for called in Called for key in keys if found[key] is called), None)


def right_choices(table: Table, answer: str) -> list[int] | None:
    """Returns the place of each row's right choice by what a key has; None without choices, and if that is not clear."""
    offered = _offered(table)
    called = None if offered is None else _called(table, offered, answer)
    if offered is None or called is None:
        return None
    right = [str(value_of(row, answer)).strip() for row in table.rows]
    if called is Called.FROM_0 or called is Called.FROM_1:
        return [int(value) - (called is Called.FROM_1) for value in right]
    shown = offered.names if called is Called.NAME else offered.texts
    plain = _plain_name if called is Called.NAME else _plain_text
    return [[plain(one) for one in each].index(plain(value)) for value, each in zip(right, shown, strict=True)]


def _asking(offered: _Offered, called: Called) -> str:
    names = {name for each in offered.names for name in each}
    if called is Called.TEXT:
        return ASKS.format("right")
    if called is not Called.NAME or all(map(str.isdecimal, names)):
        return ASKS.format("number of the right")
    return ASKS.format("letter of the right" if names <= set(LETTERS) else "label of the right")


def _offered(table: Table) -> _Offered | None:
    key = next((key for key in table.all(*KEYS) if table.values(key)), None)
    if key is None:
        return _columns(table)
    found = [value_of(row, key) for row in table.rows]
    values = [value for value in found if value]
    if all(isinstance(value, Mapping) and {"text", "label"} <= set(value) for value in values):
        return _labelled(key, found)
    if all(isinstance(value, Mapping) and _are_letters(value) for value in values):
        return _lettered(key, found)
    if all(isinstance(value, list) and all(map(_is_choice, value)) for value in values):
        return _list(key, found)
    raise ConfigurationError(
        f"the choices under {key!r} have a form that is not known; expected a list of texts, {{text: [...], label: [...]}}, "
        "or an object with the letters as keys (--prompt-field names a key whose text has question and choices)"
    )


def _labelled(key: str, values: Sequence[Any]) -> _Offered:
    name = named(key)
    loop = f"{{% for label in {name}.label %}}{{{{ label }}}}. {{{{ {name}.text[loop.index0] }}}}\n{{% endfor %}}"
    return _Offered(
        keys=(key,),
        lines={Called.NAME: loop, Called.TEXT: f"{{% for choice in {name}.text %}}- {{{{ choice }}}}\n{{% endfor %}}"},
        names=[[str(label) for label in value["label"]] if value else [] for value in values],
        texts=[list(value["text"]) if value else [] for value in values],
    )


def _lettered(key: str, values: Sequence[Any]) -> _Offered:
    def loop(begin: str) -> str:
        line = f"{{% if choice %}}{begin} {{{{ choice }}}}\n{{% endif %}}"
        return f"{{% for letter, choice in {named(key)} | dictsort %}}{line}{{% endfor %}}"

    given = [{name: text for name, text in (value or {}).items() if text not in (None, "")} for value in values]
    return _Offered(
        keys=(key,),
        lines={Called.NAME: loop("{{ letter }}."), Called.TEXT: loop("-")},
        names=[list(each) for each in given],
        texts=[list(each.values()) for each in given],
    )


def _list(key: str, values: Sequence[Any]) -> _Offered:
    def loop(begin: str) -> str:
        return f"{{% for choice in {named(key)} %}}{begin}{{{{ choice }}}}\n{{% endfor %}}"

    texts = [list(value or ()) for value in values]
    labels = [[_LABELLED.match(str(one)) for one in each] for each in texts]
    if all(label is not None for each in labels for label in each):
        return _Offered(
            keys=(key,),
            lines={Called.NAME: loop(""), Called.TEXT: loop("")},
            names=[[label[1] for label in each if label is not None] for each in labels],
            texts=texts,
        )
    return _Offered(
        keys=(key,),
        lines={
            Called.NAME: loop(f"{{{{ '{LETTERS}'[loop.index0] }}}}. "),
            Called.TEXT: loop("- "),
            Called.FROM_0: loop("{{ loop.index0 }}. "),
            Called.FROM_1: loop("{{ loop.index }}. "),
        },
        names=[LETTERS[: len(each)] if len(each) <= len(LETTERS) else "" for each in texts],
        texts=texts,
        usual=Called.TEXT,
    )


def _columns(table: Table) -> _Offered | None:
    """Returns choices that have a key each: `A` to `D`, `option_a`, `choice1`, `ending0` and the like."""
    for keys in _column_keys(table):
        if len(keys) < 2 or not all(table.mostly(key, _is_choice) for key in keys[:2]):
            continue
        names = LETTERS[: len(keys)]
        begins = {
            Called.NAME: [f"{name}." for name in names],
            Called.TEXT: ["-" for _ in keys],
            Called.FROM_0: [f"{number}." for number in range(len(keys))],
            Called.FROM_1: [f"{number + 1}." for number in range(len(keys))],
        }
        return _Offered(
            keys=keys,
            lines={
                called: "".join(f"{begin} {{{{ {named(key)} }}}}\n" for begin, key in zip(each, keys, strict=True))
                for called, each in begins.items()
            },
            names=[names for _ in table.rows],
            texts=[[text for key in keys if _is_choice(text := value_of(row, key))] for row in table.rows],
        )
    return None


def _column_keys(table: Table) -> Iterator[tuple[str, ...]]:
    """Yields keys that may have a choice each: as many as follow each other from the first letter or number."""
    for form in FORMS:
        for ends in (LETTERS[:6].lower(), *(NUMBERS if form != "{}" else ())):
            found = [table.find(form.format(end)) for end in ends]
            count = next((place for place, key in enumerate(found) if key is None), len(found))
            yield tuple(key for key in found[:count] if key is not None)


def _called(table: Table, offered: _Offered, answer: str) -> Called | None:
    """Returns what the answers under a key call the right choice by; None if that is not clear."""
    right = [value_of(row, answer) for row in table.rows]
    each = list(zip(right, offered.names, offered.texts, strict=True))
    if any(isinstance(value, (bool, list, Mapping)) or value is None for value in right):
        return None
    if all(_is_named(value, names) for value, names, _ in each):
        return Called.NAME
    if all(value in texts for value, _, texts in each):
        return Called.TEXT
    as_text = all(str(value).strip() in [str(text).strip() for text in texts] for value, _, texts in each)
    numbered = _numbered([str(value) for value in right], max(map(len, offered.texts)))
    if as_text and numbered:
        return None
    return Called.TEXT if as_text else numbered


def _numbered(answers: Sequence[str], most: int) -> Called | None:
    """Returns whether answers count the choices from 0 or from 1; None if they do not, or if that is not clear."""
    numbers = [int(answer) for answer in answers] if all(map(str.isdecimal, answers)) else []
    if numbers and min(numbers) == 0 and max(numbers) < most:
        return Called.FROM_0
    if numbers and min(numbers) >= 1 and max(numbers) == most:
        return Called.FROM_1
    return None


def _is_named(value: Any, names: Sequence[str]) -> bool:
    return _plain_name(value) in [name.casefold() for name in names]


def _plain_name(value: Any) -> str:
    return str(value).strip().strip("().").casefold()


def _plain_text(value: Any) -> str:
    return str(value).strip()


def _is_choice(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _are_letters(value: Mapping[str, Any]) -> bool:
    return len(value) > 1 and all(len(key) == 1 and key.upper() in LETTERS for key in value)


def _are_shown(table: Table, question: str, offered: _Offered) -> bool:
    """Returns whether all questions have the texts of their choices already."""
    asked = [value_of(row, question) for row in table.rows]
    return all(
        isinstance(text, str) and all(str(choice) in text for choice in texts)
        for text, texts in zip(asked, offered.texts, strict=True)
        if texts
    )
