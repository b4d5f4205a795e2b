"""Rows with a preferred and another response, or with one response and a label.

Consumes a table. Produces a `Recognised`, or None for other rows. Raises `ConfigurationError` for labels and responses in a
form that no objective learns from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.starter.recognition.prompt_parts import PROMPT_KEYS, given_key, prompt_parts
from ops.starter.recognition.recognised import PAIRS, Abilities, Asked, Recognised
from ops.starter.recognition.table import Table, ends_with, is_text, messages_in, type_name, value_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.data import DialogueMarks

PREFERRED = ("chosen", "chosen_response", "preferred", "win")
OTHER = ("rejected", "rejected_response", "dispreferred", "lose")
LABELS = (
    "label", "kto_tag", "desirable", "is_desirable", "thumbs_up", "thumbs", "feedback", "liked", "is_correct", "correct",
    "accepted",
)  # fmt: skip
COMPLETIONS = ("completion", "response", "output", "reply")
MARKS = DialogueMarks()
TRUTHS: tuple[Any, ...] = (True, False)


def pairs(table: Table, asked: Asked, model: Abilities) -> Recognised | None:
    """Returns rows with two responses each as preferences, with the prompt in a key or as what both begin with."""
    chosen, rejected = table.find(*PREFERRED), table.find(*OTHER)
    if chosen is None or rejected is None or not asked.allows(*PAIRS):
        return None
    for key in (chosen, rejected):
        _check_responses(table, key)
    conversations = table.mostly(chosen, ends_with("assistant"))
    keys = [key for key in PROMPT_KEYS if key not in ("messages", "conversations", "conversation")]
    parts = prompt_parts(table, asked, model, keys)
    source: dict[str, Any] = dict(parts.source) if parts else {"prompt_field": None}
    used = (*(parts.used if parts else ()), chosen, rejected)
    _refuse_images(source)
    texts = [value for key in (chosen, rejected) for value in table.values(key) if isinstance(value, str)]
    texts += parts.texts if parts else ()
    if any(MARKS.user in text for text in texts):
        source["dialogue"] = MARKS.model_dump()
    elif parts is None:
        _check_prefix(table, chosen, rejected)
    what = "messages" if conversations else "dialogues" if "dialogue" in source else "texts"
    where = f"prompts in {parts.used[0]!r}" if parts else f"the prompt is what both {what} begin with"
    return Recognised(
        shape=f"preferences: {where}, responses in {chosen!r} and {rejected!r}",
        objective=asked.objective or PAIRS[0],
        source={**source, "chosen_field": chosen, "rejected_field": rejected},
        used=used,
        reasons=(*(parts.reasons if parts else ()), *_unread(table, used)),
    )


def labelled(table: Table, asked: Asked, model: Abilities) -> Recognised | None:
    """Returns rows with a response and a label each as unpaired preferences."""
    if not asked.allows("kto"):
        return None
    completion = asked.answer_field or table.find(*COMPLETIONS)
    label = table.find(*LABELS)
    if completion is None or label is None:
        return None
    completion = given_key(table, completion, "--answer-field")
    if not all(_is_response(value) for value in table.values(completion)):
        return None
    values = [value_of(row, label) for row in table.rows]
    wrong = next((value for value in values if value is None or value not in TRUTHS), None)
    if any(value is None or value not in TRUTHS for value in values):
        raise ConfigurationError(
            f"the rows have a response under {completion!r} and a label under {label!r} that is {wrong!r}; "
            "expected true or false "
            "(or 1 or 0) in each row: true for a response that is desirable"
        )
    parts = prompt_parts(table, asked, model, [key for key in PROMPT_KEYS if key not in ("output", "messages")])
    if parts is None:
        return None
    _refuse_images(parts.source)
    return Recognised(
        shape=f"unpaired preferences: prompts in {parts.used[0]!r}, responses in {completion!r}, labels in {label!r}",
        objective="kto",
        source={**parts.source, "answer_field": completion, "label_field": label},
        used=(*parts.used, completion, label),
        reasons=parts.reasons,
    )


def _check_responses(table: Table, key: str) -> None:
    """Raises `ConfigurationError` if a response is neither text nor a conversation that ends with the assistant's message."""
    for number, row in enumerate(table.rows, start=1):
        value = value_of(row, key)
        if not _is_response(value):
            raise ConfigurationError(
                f"row {number}: {key!r} is {type_name(value)}; expected a text, or a list of messages that ends "
                "with the "
                "assistant's"
            )


def _is_response(value: Any) -> bool:
    return ends_with("assistant")(value) if messages_in(value) is not None else is_text(value)


def _check_prefix(table: Table, chosen: str, rejected: str) -> None:
    """Raises `ConfigurationError` if two responses of a row have nothing in common that could be the prompt."""
    for number, row in enumerate(table.rows, start=1):
        one, other = value_of(row, chosen), value_of(row, rejected)
        first = messages_in(one), messages_in(other)
        if first[0] is not None and first[1] is not None:
            common = first[0][:-1] == first[1][:-1] or first[0][0] == first[1][0]
        else:
            common = str(one).strip()[:1] == str(other).strip()[:1]
        if not common:
            raise ConfigurationError(
                f"row {number}: no key looks like a prompt, and {chosen!r} and {rejected!r} begin with nothing in "
                "common; name the "
                f"prompt with --prompt-field (the keys: {table.described()})"
            )


def _refuse_images(source: Mapping[str, Any]) -> None:
    if key := source.get("image_field"):
        raise ConfigurationError(f"the rows have images under {key!r}; only rl with rewards can show images to a model")


def _unread(table: Table, used: tuple[str, ...]) -> list[str]:
    """Returns what to say of margins and scores, which no objective reads."""
    words = ("score", "margin", "rating", "rank", "strength")
    found = [key for key in table.keys if key not in used and any(word in key.lower() for word in words)]
    return [f"no objective reads {', '.join(map(repr, found))}: each pair counts the same"] if found else []
