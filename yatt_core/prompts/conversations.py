"""Conversations of rows: messages of a system, a user, an assistant and tools, in the forms in which files have them.

Consumes the value of a row. Produces `Message`s, the part of a conversation that is a demonstration, and a transcript, which
people, judges and reward functions read; the model receives the messages in its own chat template. Raises `DataError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from yatt_core.errors import DataError
from yatt_core.json_text import parsed
from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.common_prefix import same_message
from yatt_core.prompts.message_forms import ASSISTANT, SYSTEM, TOOL, USER, read_message
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.thoughts import THINK
from yatt_core.prompts.tool_calls import ToolCall


def is_conversation(value: Any) -> bool:
    """Returns True for a list of messages, or the JSON text of one; a list of anything else is no conversation."""
    found = parsed(value, "[") if isinstance(value, str) else value
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(item, Mapping) and ("role" in item or "from" in item) for item in found)
    )


def read_conversation(value: Any) -> tuple[Message, ...]:
    """Returns the messages in a row's value: a list of messages in one of the forms of `message_forms`, or its JSON text.

    Only the first message may be the system's; an empty one is left out, as ShareGPT's files have it. The value may end with a
    message of any other role.
    """
    found = parsed(value, "[") if isinstance(value, str) else value
    if not isinstance(found, list):
        raise DataError(f"is {type(value).__name__}; expected a list of messages")
    messages = tuple(read_message(item, f"message {number}") for number, item in enumerate(found, start=1))
    for number, message in enumerate(messages, start=1):
        if message.role == SYSTEM and number > 1:
            raise DataError(f"message {number} has the role system; only the first message may have it")
    if messages and messages[0].role == SYSTEM and not messages[0].content.strip():
        messages = messages[1:]
    if not messages:
        raise DataError("the conversation has no messages; expected a last message of the user or the assistant")
    return messages


def split_demonstration(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Returns the prompt's messages, and the reply if the conversation ends with the assistant's message.

    The reply of such a demonstration begins with the assistant's first message.
    """
    last = messages[-1].role
    if last not in (USER, TOOL, ASSISTANT):
        raise DataError(
            f"the conversation ends with the role {last}; expected a last message of the user or the assistant"
        )
    if last != ASSISTANT:
        return tuple(messages), ()
    first = next(place for place, message in enumerate(messages) if message.role == ASSISTANT)
    if not any(message.role in (USER, TOOL) for message in messages[:first]):
        raise DataError("the conversation begins with the assistant's message; expected one of the user before it")
    check_learnt(messages[first:])
    return tuple(messages[:first]), tuple(messages[first:])


def check_learnt(reply: Sequence[Message]) -> None:
    """Raises `DataError` if all of the assistant's messages have the weight 0."""
    if not any(message.learnt for message in reply if message.role == ASSISTANT):
        raise DataError("all of the assistant's messages have the weight 0; expected one to learn from")


def behind(messages: Sequence[Message], before: Sequence[Message]) -> tuple[Message, ...]:
    """Returns a response: messages that end with the assistant's, without those of the prompt.

    before: the prompt's messages, which may be repeated before the response, with or without the system message.
    """
    if messages[-1].role != ASSISTANT:
        raise DataError(f"ends with the role {messages[-1].role}; expected a last message of the assistant")
    spoken = [message for message in before if message.role != SYSTEM]
    for prompt in (list(before), spoken):
        count = len(prompt)
        if 0 < count < len(messages) and all(map(same_message, messages[:count], prompt)):
            messages = messages[count:]
            break
    if messages[0].role != ASSISTANT:
        raise DataError("begins with messages that are not the prompt's; expected these, or the response alone")
    check_learnt(messages)
    return tuple(messages)


def transcript(messages: Sequence[Message]) -> str:
    """Returns the messages as text, each after its role."""
    return "\n\n".join(_shown(message) for message in messages)


def _shown(message: Message) -> str:
    who = f"{message.role} ({message.name})" if message.name else message.role
    thoughts = f"{THINK.begin}\n{message.thoughts}\n{THINK.end}\n" if message.thoughts else ""
    said = [message.content] if message.content or not message.calls else []
    return f"{who}: {thoughts}{chr(10).join([*said, *map(_shown_call, message.calls)])}"


def _shown_call(call: ToolCall) -> str:
    shown = {"name": call.name, "arguments": dict(call.arguments)}
    return f"{CALL}{json.dumps(shown, ensure_ascii=False)}{CALL_END}"
