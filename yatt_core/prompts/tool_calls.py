"""The form in which a policy calls a tool, and in which a response's text shows the result: pure functions of text.

A call is a JSON object between two tags, `<tool_call>{"name": "calculator", "arguments": {"expression": "3 * 4"}}</tool_call>`,
as many chat models write it; one call a turn. A call that cannot be read is data like any other: the policy is told.
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
"""Levels of lists and objects in a call: far below what Python's JSON takes, wherever in a program it is read or written."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be read. arguments: plain JSON values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What came of a call. text: what the policy is told. error: why there is no result, else empty; begins with its kind."""

    text: str
    error: str = ""

    @classmethod
    def failed(cls, kind: str, reason: str, tool: str = "") -> ToolAnswer:
        """An answer that says what is wrong. kind: one of `KINDS`. tool: whose fault it is; empty for the call's own."""
        said = f"{tool}: {reason}" if tool else reason
        return cls(f"error: {said}", f"{kind}: {said}")


def read_call(text: str) -> ToolCall | ToolAnswer | None:
    """The call in a turn's text; none without one; an answer that says what is wrong with one that cannot be read."""
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
    """Raises `ValueError` for a JSON value with more levels of lists and objects than these."""
    if not isinstance(value, list | dict):
        return
    if not levels:
        raise ValueError("nested too deeply")
    for part in value.values() if isinstance(value, dict) else value:
        _check_depth(part, levels - 1)


def write_result(text: str) -> str:
    """A result as it stands in a response's text."""
    return f"{RESULT}{text}{RESULT_END}"


def last_turn(text: str) -> str:
    """What stands behind the last result in a response's text; all of it where there is none."""
    return text.rpartition(RESULT_END)[2]


def split_turns(text: str) -> tuple[list[str], list[str]]:
    """The turns of a response's text, and the results between them: one less."""
    turns, results = [], []
    while RESULT in text and RESULT_END in text:
        turn, _, behind = text.partition(RESULT)
        result, _, text = behind.partition(RESULT_END)
        turns.append(turn)
        results.append(result)
    return [*turns, text], results
