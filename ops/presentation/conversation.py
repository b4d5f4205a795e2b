"""Divides prompts and responses into messages, so that a conversation can be read turn by turn.

Consumes texts as the experience stores them; produces `Message`s whose texts add up to the original, apart from tags and
surrounding white space.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from yatt_core.prompts.tool_calls import CALL, CALL_END, RESULT, RESULT_END

USER, ASSISTANT, THINKING, TOOL_CALL, TOOL_RESULT = "user", "assistant", "thinking", "tool call", "tool result"
TAGS = {
    "<think>": ("</think>", THINKING),
    CALL: (CALL_END, TOOL_CALL),
    RESULT: (RESULT_END, TOOL_RESULT),
    "<tool_response>": ("</tool_response>", TOOL_RESULT),
}
_TAGGED = re.compile(
    "|".join(f"{re.escape(start)}(?:.*?){re.escape(end)}" for start, (end, _) in TAGS.items()), re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Message:
    """A part of a conversation and whose it is."""

    role: str
    text: str


def prompt_messages(text: str) -> tuple[Message, ...]:
    """Returns the messages of a prompt: those of a chat in JSON, else one message of the user."""
    if text.startswith("["):
        try:
            return tuple(Message(str(each["role"]), str(each["content"])) for each in json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # a prompt that happens to begin with a bracket
    return (Message(USER, text),)


def response_messages(text: str) -> tuple[Message, ...]:
    """Returns the parts of a response: its words, thoughts, tool calls and their results, in order."""
    found, end = list[Message](), 0
    for match in _TAGGED.finditer(text):
        found += _words(text[end : match.start()])
        start = next(tag for tag in TAGS if match[0].startswith(tag))
        closing, role = TAGS[start]
        found.append(Message(role, match[0].removeprefix(start).removesuffix(closing).strip()))
        end = match.end()
    found += _words(text[end:])
    return tuple(found) or (Message(ASSISTANT, text),)


def _words(text: str) -> list[Message]:
    return [Message(ASSISTANT, text.strip("\n"))] if text.strip() else []
