"""Which key has the reference answers: pure functions of a table.

Consumes a table and the options of the command. Produces a key. Of several, the one that says best which choice is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ops.starter.recognition.agreement import check_agree, check_complete
from ops.starter.recognition.answer_kinds import single_answers
from ops.starter.recognition.choices import answer_among
from ops.starter.recognition.recognised import RL, RecognitionOptions
from ops.starter.recognition.table import Table, given_key, parsed, value_of
from yatt_core.json_text import object_in

NESTED = (
    "reward_model.ground_truth", "reward_model.ground_truth.target", "reward_spec.ground_truth", "extra_info.answer",
    "extra_info.ground_truth", "verification_info.ground_truth", "metadata.answer", "info.answer",
)  # fmt: skip
ANSWER_KEYS = (
    "answer", "final_answer", "expected_answer", "ground_truth", "reference_answer", "reference", "answerKey",
    "correct_answer", "correct_option", "answer_idx", "gold", "golden_answers", "cop", "gt", "target", "label",
    "correct", "expected", "solution",
)  # fmt: skip
ALSO_ANSWERS = ("output", "response", "completion", "answers")
"""Keys that have an answer only for those who ask for RL: they are demonstrations otherwise."""
WITHIN = ("value", "text", "answer", "answers", "aliases", "target", "ground_truth", "final_answer")
"""Keys of answers in an object that has more."""


def answer_key(table: Table, asked: RecognitionOptions, question: str) -> str | None:
    """Returns the key of the reference answers; None if there is none.

    Raises `ConfigurationError` if other keys have other answers that may be right.

    question: the key of the prompts.
    """
    if asked.answer_field is not None:
        return given_key(table, asked.answer_field, "--answer-field")
    also = ALSO_ANSWERS if asked.objective == RL else ()
    found = [key for key in table.all(*ANSWER_KEYS, *NESTED, *also) if key != question and _has_answers(table, key)]
    key = answer_among(table, found) or next(iter(found), None)
    if key is not None and not asked.own_reward:
        check_agree(table, key, found)
        check_complete(table, key)
    return key


def _has_answers(table: Table, key: str) -> bool:
    """Returns whether all values are answers: no objects, and no part of one that has more than the answer."""
    values = table.values(key)
    if not values or single_answers(values) is None or any(object_in(value) is not None for value in values):
        return False
    holder, _, part = key.rpartition(".")
    return part != "target" or not holder or all(_is_alone(value_of(row, holder)) for row in table.rows)


def _is_alone(value: Any) -> bool:
    """Returns whether an object has a single value."""
    return sum(1 for one in (object_in(value) or {}).values() if one is not None) <= 1


def unread_answers(table: Table, question: str | None = None) -> str:
    """Returns what is under keys of answers that no reward can read, with what to do, in words; empty if there is nothing.

    question: the key of the prompts.
    """
    for key in table.all(*ANSWER_KEYS, *NESTED, *ALSO_ANSWERS):
        values = table.values(key)
        if key == question or not values or _has_answers(table, key):
            continue
        counts = Counter(_kind(value) for value in values)
        seen = f"the values under {key!r} are {' and '.join(f'{count} {kind}' for kind, count in counts.items())}"
        if len(counts) > 1:
            return f"{seen}; expected answers of one kind in all rows (a file for each kind becomes a mixture)"
        if parts := _answers_within(table, key):
            return f"{seen}; --answer-field {' or '.join(parts)} takes these alone"
        return f"{seen}; expected a text, a number, true or false, or a list of right answers"
    return ""


def _kind(value: Any) -> str:
    """Returns what a value is, as a reward sees it, in the plural."""
    if object_in(value) is not None:
        return "objects" if isinstance(value, Mapping) else "JSON texts of objects"
    listed = parsed(value)
    if isinstance(listed, list):
        return "lists of objects" if any(isinstance(one, Mapping) for one in listed) else "lists"
    return "true or false" if isinstance(value, bool) else "texts" if isinstance(value, str) else "numbers"


def _answers_within(table: Table, key: str) -> list[str]:
    """Returns the keys within objects that have answers."""
    names = {name: None for value in table.values(key) for name in object_in(value) or ()}
    keys = [f"{key}.{name}" for name in names if str(name).lower() in WITHIN]
    return [one for one in keys if single_answers(table.values(one))]
