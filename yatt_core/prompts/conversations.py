"""Conversations as prompts: several messages of a system, a user and an assistant, the last of them the user's.

Consumes the value of a row. Produces `Message`s and a transcript, which people, judges and reward functions read; the
model receives the messages in its own chat template. Raises `DataError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from yatt_core.errors import DataError
from yatt_core.models.tokenizer import IMAGE
from yatt_core.prompts.prompt import Message

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")


def read_messages(value: Sequence[Any]) -> tuple[Message, ...]:
    """Returns the messages in a row's value, a list of {role, content}.

    Content is text, or a list of parts, {type: text, text: TEXT} or {type: image}. An image part marks the place of the
    next image of the row.
    """
    messages = tuple(_message(item, f"message {number}") for number, item in enumerate(value, start=1))
    for number, message in enumerate(messages, start=1):
        if message.role == SYSTEM and number > 1:
            raise DataError(f"message {number} has the role system; only the first message may have it")
    if not messages or messages[-1].role != USER:
        ends = f"ends with the role {messages[-1].role}" if messages else "has no messages"
        raise DataError(
            f"the conversation {ends}; expected a last message of the user, and the answer in a key of its own"
        )
    return messages


def read_response(value: Any, before: Sequence[str]) -> str:
    """Returns the text of a response: a string, or a list of messages that ends with the assistant's.

    before: contents of the prompt's messages, which the list may repeat before the response.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise DataError(f"is {type(value).__name__}; expected a string, or messages that end with the assistant's")
    messages = [_message(item, f"message {number}") for number, item in enumerate(value, start=1)]
    if messages[-1].role != ASSISTANT:
        raise DataError(f"ends with the role {messages[-1].role}; expected a last message of the assistant")
    if len(messages) > 1 and [message.content for message in messages[:-1]] != list(before):
        raise DataError("begins with messages that are not the prompt's; expected these, or the response alone")
    return messages[-1].content


def transcript(messages: Sequence[Message]) -> str:
    """Returns the messages as text, each after its role."""
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


def _message(item: Any, place: str) -> Message:
    if not isinstance(item, Mapping):
        raise DataError(f"{place} is {type(item).__name__}; expected {{role, content}}")
    if item.get("role") not in ROLES:
        raise DataError(f"{place} has the role {item.get('role')!r}; expected one of {', '.join(ROLES)}")
    others = [key for key, value in item.items() if key not in ("role", "content") and value is not None]
    if others:
        raise DataError(f"{place} has the key {others[0]!r}; expected role and content only")
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}, part {number}") for number, part in enumerate(content, start=1))
    if not isinstance(content, str) or not content.strip():
        raise DataError(f"{place}: content must be a non-empty string, or a list of parts")
    return Message(item["role"], content)


def _part(part: Any, place: str) -> str:
    given = {key: value for key, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
    if given.keys() == {"type", "text"} and given["type"] == "text" and isinstance(given["text"], str):
        return str(given["text"])
    if given == {"type": "image"}:
        return IMAGE
    raise DataError(f"{place}: expected {{type: text, text: TEXT}}, or {{type: image}} with the image in image_field")
