"""The first rows of a data set with questions about their keys: pure functions.

Consumes rows as plain values. A key is found whatever its letters' case, and is named as the file spells it; a dot leads
into an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.json_text import object_in
from yatt_core.prompts.keys import value_at
from yatt_core.prompts.message_forms import role_of

MOST_OF = 0.9
"""Share of the rows that have to agree on what a key contains."""
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "text"),
    (bytes, "bytes"),
    (dict, "object"),
)


class Table:
    """Rows and their keys, in order of first occurrence."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = rows
        self.keys: tuple[str, ...] = tuple({key: None for row in rows for key in row})

    def find(self, *names: str) -> str | None:
        """Returns the first of the keys that some row has, as the rows spell it; None if there is none."""
        return next(self.all(*names), None)

    def all(self, *names: str) -> Iterator[str]:
        """Yields the keys that some row has, in the order of the names."""
        for name in names:
            if name in self.keys:
                yield name
            elif (found := _spelled(self.rows, name.split("."))) is not None:
                yield found

    def values(self, key: str) -> list[Any]:
        """Returns the value of each row that has one; the empty text and null count as none."""
        found = (value_of(row, key) for row in self.rows)
        return [value for value in found if value is not None and value != "" and value != []]

    def mostly(self, key: str | None, test: Callable[[Any], bool]) -> bool:
        """Returns whether most rows have a value under the key that passes the test."""
        return key is not None and sum(map(test, self.values(key))) >= MOST_OF * len(self.rows)

    def complete(self, key: str) -> bool:
        """Returns whether every row has the key."""
        return all(key in row for row in self.rows)

    def described(self) -> str:
        """Returns the keys with the types of their values."""
        return ", ".join(f"{key!r} ({self._type(key)})" for key in self.keys) or "no keys"

    def _type(self, key: str) -> str:
        values = self.values(key)
        return " or ".join({type_name(value): None for value in values}) or "always empty"


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """Returns the value under a key, in which a dot leads into an object; None if there is none."""
    return value_at(row, key)


def given_key(table: Table, key: str, option: str) -> str:
    """Returns a key that an option names. Raises `ConfigurationError` if no row has it."""
    if not any(value_of(row, key) is not None for row in table.rows):
        raise ConfigurationError(f"{option} {key}: no row has this key; the keys are {', '.join(table.keys) or 'none'}")
    return key


def type_name(value: Any) -> str:
    """Returns what a value is, in words."""
    if isinstance(value, list):
        return f"list of {type_name(value[0])}" if value else "empty list"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), type(value).__name__)


def is_text(value: Any) -> bool:
    """Returns whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def messages_in(value: Any) -> list[tuple[str, str]] | None:
    """Returns role and text of each message of a conversation, which may be JSON text; None for any other value.

    Roles are `system`, `user`, `assistant`, `tool`, or the word in the row if it is none of the known ones.
    """
    value = parsed(value)
    if not isinstance(value, list) or not value or not all(isinstance(message, Mapping) for message in value):
        return None
    found = list[tuple[str, str]]()
    for message in value:
        role = role_of(message)
        if role is None or not ({"content", "value", "tool_calls"} & set(message)):
            return None
        found.append((role, _content(message)))
    return found


def ends_with(role: str) -> Callable[[Any], bool]:
    """Returns a test of whether a value is a conversation whose last message has the role."""

    def test(value: Any) -> bool:
        messages = messages_in(value)
        return messages is not None and messages[-1][0] == role

    return test


def has_calls(value: Any) -> bool:
    """Returns whether a conversation has a message that calls a tool."""
    messages = parsed(value)
    return isinstance(messages, list) and any(
        isinstance(message, Mapping) and (message.get("tool_calls") or message.get("from") == "function_call")
        for message in messages
    )


def is_response(value: Any) -> bool:
    """Returns whether a value is a text, or a conversation that ends with the assistant's message."""
    messages = messages_in(value)
    return is_text(value) if messages is None else messages[-1][0] == "assistant"


def is_prompt(value: Any) -> bool:
    """Returns whether a value is a text, or a conversation that waits for the assistant."""
    messages = messages_in(value)
    return is_text(value) if messages is None else messages[-1][0] in ("user", "tool")


def text_of(value: Any) -> str:
    """Returns the text of a prompt, with all messages of a conversation; the empty text for null."""
    messages = messages_in(value)
    return str("" if value is None else value) if messages is None else "\n".join(text for _, text in messages)


def parsed(value: Any) -> Any:
    """Returns the list or object in a JSON text; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _spelled(values: Sequence[Any], parts: Sequence[str]) -> str | None:
    """Returns a dotted key as the objects spell it; None if none of them has it."""
    first, *rest = parts
    objects = [found for value in values if (found := object_in(value)) is not None]
    for key in {key: None for value in objects for key in value}:
        if _plain(str(key)) != _plain(first):
            continue
        if not rest:
            return str(key)
        within = _spelled([value.get(key) for value in objects], rest)
        if within is not None:
            return f"{key}.{within}"
    return None


def _plain(key: str) -> str:
    """Returns a key as it is compared: without case, underscores, hyphens and white space."""
    return re.sub(r"[\s_\-]", "", key).casefold()
