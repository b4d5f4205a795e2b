"""Divides prompts and responses into messages, so that a conversation can be read turn by turn.

Consumes texts as the experience stores them; produces `ShownMessage`s whose texts add up to the original, apart from tags and
surrounding white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.tool_calls import RESULT, RESULT_END

USER = "user"
ASSISTANT = "assistant"
THINKING = "thinking"
TOOL_CALL = "tool call"
TOOL_RESULT = "tool result"
TAGS = {
    "<think>": ("</think>", THINKING),
    CALL: (CALL_END, TOOL_CALL),
    RESULT: (RESULT_END, TOOL_RESULT),
    "<tool_response>": ("</tool_response>", TOOL_RESULT),
}
_OPENING = re.compile("|".join(map(re.escape, TAGS)))


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A part of a conversation and whose it is."""

    role: str
    text: str


def prompt_messages(text: str) -> tuple[ShownMessage, ...]:
    """Returns the messages of a prompt: those of a chat in JSON, else one message of the user."""
    if text.startswith("["):
        try:
            return tuple(ShownMessage(str(each["role"]), str(each["content"])) for each in json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # a prompt that happens to begin with a bracket
    return (ShownMessage(USER, text),)


def response_messages(text: str) -> tuple[ShownMessage, ...]:
    """Returns the parts of a response: its words, thoughts, tool calls and their results, in order."""
    found = list[ShownMessage]()
    end = 0
    for start, opens, closes in _tagged(text):
        closing, role = TAGS[start]
        found += _words(text[end:opens])
        found.append(ShownMessage(role, text[opens + len(start) : closes].strip()))
        end = closes + len(closing)
    found += _words(text[end:])
    return tuple(found) or (ShownMessage(ASSISTANT, text),)


def _tagged(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the tag of each tagged part, and where its opening and closing tags begin; takes linear time."""
    at = 0
    unclosed = set[str]()
    while (match := _OPENING.search(text, at)) is not None:
        start = match[0]
        at = match.end()
        if start in unclosed:
            continue
        closing, _ = TAGS[start]
        closes = text.find(closing, at)
        if closes < 0:
            unclosed.add(start)
            continue
        yield start, match.start(), closes
        at = closes + len(closing)


def _words(text: str) -> list[ShownMessage]:
    return [ShownMessage(ASSISTANT, text.strip("\n"))] if text.strip() else []
