"""A policy's tool calls and their results within a response: pure functions of text.

A call has the form of the model's family (`call_syntaxes`). A turn contains at most one call, behind its thoughts. An
invalid call raises no error: the policy receives an answer that states what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.prompts.call_syntaxes import SYNTAXES, MalformedCallError
from yatt_core.prompts.reading import UNKNOWN as UNKNOWN_READING
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.thoughts import split_thoughts

RESULT = "<tool_result>"
RESULT_END = "</tool_result>"

MALFORMED, UNKNOWN, TIMEOUT, MEMORY, RAISED, DIED, UNAVAILABLE = KINDS = (
    "malformed",
    "unknown",
    "timeout",
    "memory",
    "raised",
    "died",
    "unavailable",
)
"""What can be wrong with a call. `UNAVAILABLE`: a service that the tool asks does not answer, which no policy is told."""


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

    @property
    def is_unavailable(self) -> bool:
        """Whether there is no answer that the policy could be given."""
        return self.error.startswith(f"{UNAVAILABLE}:")

    @classmethod
    def failed(cls, kind: str, reason: str, tool: str = "") -> ToolAnswer:
        """Returns an answer that explains a failure.

        kind: one of `KINDS`.
        tool: the tool that failed; empty if the call itself is at fault.
        """
        said = f"{tool}: {reason}" if tool else reason
        return cls(f"error: {said}", f"{kind}: {said}")


def read_call(text: str, reading: Reading = UNKNOWN_READING) -> ToolCall | ToolAnswer | None:
    """Returns the call in a turn's text behind its thoughts; None if there is none. A call drafted in thoughts is none.

    For an invalid call, returns an answer that explains what is wrong.
    """
    try:
        written = SYNTAXES[reading.syntax](split_thoughts(text, reading.marks).final)
    except MalformedCallError as error:
        return ToolAnswer.failed(MALFORMED, str(error))
    if written is None:
        return None
    as_written = {key: text for key, text in written.texts.items() if (written.name, key) in reading.texts}
    return ToolCall(written.name, {**written.arguments, **as_written}, written.call_id)


def write_result(text: str) -> str:
    """Returns a result in the form that it has in a response's text."""
    return f"{RESULT}{text}{RESULT_END}"


def last_turn(text: str) -> str:
    """Returns the text after the last result in a response, or all of it if there is no result."""
    return text.rpartition(RESULT_END)[2]


def split_turns(text: str) -> tuple[list[str], list[str]]:
    """Returns the turns of a response's text and the results between them, one fewer than the turns."""
    turns = []
    results = []
    while RESULT in text and RESULT_END in text:
        turn, _, behind = text.partition(RESULT)
        result, _, text = behind.partition(RESULT_END)
        turns.append(turn)
        results.append(result)
    return [*turns, text], results
