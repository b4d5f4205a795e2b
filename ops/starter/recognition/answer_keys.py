"""Which key has the reference answers: pure functions of a table.

Consumes a table and the options of the command. Produces a key. Of several, the one that says best which choice is right.
"""

from __future__ import annotations

from typing import Any

from ops.starter.recognition.agreement import check_agree, check_complete
from ops.starter.recognition.answer_kinds import single_answers
from ops.starter.recognition.choices import answer_among
from ops.starter.recognition.recognised import RL, Asked
from ops.starter.recognition.table import Table, given_key, value_of
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


def answer_key(table: Table, asked: Asked, question: str) -> str | None:
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
