"""Whether columns that may have the reference answers agree: of two answers that differ, none is taken silently.

Consumes a table and its keys. Raises `ConfigurationError` with both answers, and for further right answers in a column of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ops.starter.recognition.answer_kinds import AnswerKind, after_hashes, kind_of, placeholders, single_answers
from ops.starter.recognition.choices import right_choices
from ops.starter.recognition.table import Table, parsed, value_of
from yatt_core.errors import ConfigurationError

FURTHER = (
    "answer_aliases", "aliases", "answer_alias", "alternative_answers", "alternate_answers", "acceptable_answers",
    "accepted_answers", "possible_answers", "valid_answers", "other_answers", "additional_answers", "answers",
)  # fmt: skip
"""Keys of lists of answers that are right as well."""
INCOMPARABLE = (AnswerKind.TEXT, AnswerKind.IN_BOX)
"""Answers with so many words that they differ even where they agree."""


def check_agree(table: Table, key: str, others: Sequence[str]) -> None:
    """Raises `ConfigurationError` for the first row in which another key has another answer of the same kind."""
    for other in others:
        differ = [] if other == key else _differing_rows(table, key, other)
        if differ:
            row = table.rows[differ[0]]
            raise ConfigurationError(
                f"{key!r} and {other!r} have different answers in {len(differ)} of the first {len(table.rows)} rows; row "
                f"{differ[0] + 1}: {value_of(row, key)!r:.60} and {value_of(row, other)!r:.60}; name the right one with "
                "--answer-field"
            )


def check_complete(table: Table, key: str) -> None:
    """Raises `ConfigurationError` if rows have further right answers under another key."""
    for other in table.all(*FURTHER):
        if other == key:
            continue
        rows = [(_answers(value_of(row, key)), _answers(parsed(value_of(row, other)))) for row in table.rows]
        if not any(set(more) - set(answers) for answers, more in rows):
            continue
        has_all = all(set(answers) <= set(more) for answers, more in rows)
        written = any(isinstance(value, str) for value in table.values(other))
        all_right = f", or --answer-field {other} takes those of {other!r}" if has_all and not written else ""
        raise ConfigurationError(
            f"the rows have further right answers under {other!r}, and a reward that compares with {key!r} takes them for "
            f"wrong; expected a list of all right answers under one key{all_right} (--answer-field {key} leaves the others "
            "out)"
        )


def _differing_rows(table: Table, key: str, other: str) -> list[int]:
    """Returns the places of the rows whose answers under two keys can be compared, and differ."""
    chosen = right_choices(table, key)
    also = right_choices(table, other)
    if chosen is not None and also is not None:
        return [place for place, (one, two) in enumerate(zip(chosen, also, strict=True)) if one != two]
    texts = [[_answers(value_of(row, name)) for row in table.rows] for name in (key, other)]
    flat = [[answer for answers in column for answer in answers] for column in texts]
    kind, second = map(kind_of, flat)
    if kind is not second or kind in INCOMPARABLE or any(map(placeholders, flat)):
        return []
    return [
        place
        for place, (one, two) in enumerate(zip(*texts, strict=True))
        if one and two and not {_comparable(text) for text in one} & {_comparable(text) for text in two}
    ]


def _answers(value: Any) -> list[str]:
    return [] if value is None or value == "" else single_answers([value]) or []


def _comparable(answer: str) -> str | float:
    """Returns an answer without what its writing adds: signs of currency and thousands, spaces, LaTeX's frames, case."""
    text = after_hashes([answer])[0]
    plain = re.sub(r"\\(?:left|right|!)|[\s$,()]|\.\s*$", "", text).casefold()
    try:
        return float(plain)
    except ValueError:
        return plain
