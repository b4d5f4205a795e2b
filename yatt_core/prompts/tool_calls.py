"""The format of a policy's tool calls and of their results within a response: pure functions of text.

A call is a JSON object between two tags, `<tool_call>{"name": "calculator", "arguments": {"expression": "3 *
4"}}</tool_call>`, the format of many chat models. A turn contains at most one call. An invalid call raises no error:
the policy receives an answer that states what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_result>", "</tool_result>"

MALFORMED, UNKNOWN, TIMEOUT, MEMORY, RAISED, DIED = KINDS = (
    "malformed",
    "unknown",
    "timeout",
    "memory",
    "raised",
    "died",
)
"""What can be wrong with a call."""
DEEPEST = 100
"""Maximum nesting of lists and objects in a call, far below the limit of Python's JSON parser at any depth of the call
stack."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A valid call.

    arguments: plain JSON values.
    call_id: the id by which a result names the call; empty if it has none.
    """

    name: str
    arguments: Mapping[str, Any]
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The outcome of a call.

    text: text of the answer that the policy receives.
    error: why there is no result, starting with its kind; empty if there is one.
    """

    text: str
    error: str = ""

    @classmethod
    def failed(cls, kind: str, reason: str, tool: str = "") -> ToolAnswer:
        """Returns an answer that explains a failure.

        kind: one of `KINDS`.
        tool: the tool that failed; empty if the call itself is at fault.
        """
        said = f"{tool}: {reason}" if tool else reason
        return cls(f"error: {said}", f"{kind}: {said}")


def read_call(text: str) -> ToolCall | ToolAnswer | None:
    """Returns the call in a turn's text; None if there is none.

    For an invalid call, returns an answer that explains what is wrong.
    """
    count = text.count(CALL)
    if not count:
        return None
    if count > 1:
        return ToolAnswer.failed(MALFORMED, f"one call a turn, not {count}")
    body, end, _ = text.partition(CALL)[2].partition(CALL_END)
    if not end:
        return ToolAnswer.failed(MALFORMED, f"a call ends with {CALL_END}")
    try:
        call = json.loads(body)
        _check_depth(call, DEEPEST)
    except (ValueError, RecursionError):
        return ToolAnswer.failed(MALFORMED, f"there is no JSON between {CALL} and {CALL_END}")
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        return ToolAnswer.failed(MALFORMED, 'a call is {"name": "...", "arguments": {...}}')
    return ToolCall(call["name"], call["arguments"])


def _check_depth(value: Any, levels: int) -> None:
    """Raises `ValueError` for a JSON value with more than this many levels of lists and objects."""
    if not isinstance(value, list | dict):
        return
    if not levels:
        raise ValueError("nested too deeply")
    for part in value.values() if isinstance(value, dict) else value:
        _check_depth(part, levels - 1)


def write_result(text: str) -> str:
    """Returns a result in the form that it has in a response's text."""
    return f"{RESULT}{text}{RESULT_END}"


def last_turn(text: str) -> str:
    """Returns the text after the last result in a response, or all of it if there is no result."""
    return text.rpartition(RESULT_END)[2]


def split_turns(text: str) -> tuple[list[str], list[str]]:
    """Returns the turns of a response's text and the results between them, one fewer than the turns."""
    turns, results = [], []
    while RESULT in text and RESULT_END in text:
        turn, _, behind = text.partition(RESULT)
        result, _, text = behind.partition(RESULT_END)
        turns.append(turn)
        results.append(result)
    return [*turns, text], results
