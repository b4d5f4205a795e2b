"""A prompt, and what is known about a response to it: plain data, without heavy imports for the reward process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.prompts.tool_calls import RESULT, RESULT_END, ToolCall, read_call

STOPPED = "stop"
"""Why a response ended that was not cut."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    role: `system`, `user` or `assistant`.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task.

    source: index of its source in the spec's mixture.
    index: number of the prompt's row among the source's rows of the same split.
    text: the question, or the transcript of a conversation.
    prompt_id: an id that is unique within a run's inputs and names split, source and original row.
    answer: the reference answer; None if the row has none.
    entry: the original row as plain JSON values, for the reward functions.
    media: content addresses of its images, in the order in which they appear in the text.
    messages: the conversation; empty for a single question.
    """

    source: int
    index: int
    prompt_id: str
    text: str
    answer: str | None
    entry: Mapping[str, Any]
    media: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy in a response.

    text: the turn's text, a tool call included.
    call: the valid tool call in it; None if there is none.
    result: the text that the policy received in answer to a call; None after the last turn.
    """

    text: str
    call: ToolCall | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A response to a prompt, as reward functions see it.

    text: text of all turns, with tool results in tags.
    last_turn: text of the last turn.
    tokens: number of tokens that the policy generated.
    token_ids: these tokens, without those of tool results; empty for a text that no model has generated.
    stop_reason: `stop`; `length` if the response was cut; `turns` if it had no turn left for a call.
    """

    text: str
    last_turn: str
    tokens: int
    stop_reason: str = STOPPED
    turns: tuple[Turn, ...] = ()
    token_ids: tuple[int, ...] = ()

    @classmethod
    def of_turns(
        cls,
        text: str,
        spoken: Sequence[str],
        tokens: int,
        stop_reason: str = STOPPED,
        token_ids: Sequence[int] = (),
    ) -> Completion:
        """Returns a response; the arguments are those of `turns_of`, and the fields of the class."""
        return cls(text, spoken[-1], tokens, stop_reason, turns_of(text, spoken), tuple(token_ids))


def turns_of(text: str, spoken: Sequence[str]) -> tuple[Turn, ...]:
    """Returns the turns of a response.

    text: text of the whole response.
    spoken: text of each of the policy's turns. With it, tags that the policy wrote itself are not taken for results.
    """
    turns, rest = [], text
    for number, turn in enumerate(spoken):
        call = read_call(turn)
        known = call if isinstance(call, ToolCall) else None
        if number + 1 == len(spoken):
            turns.append(Turn(turn, known))
            break
        rest = rest[len(turn) + len(RESULT) :]
        following = spoken[number + 1]
        last = number + 2 == len(spoken)
        end = len(rest) - len(following) - len(RESULT_END) if last else rest.find(RESULT_END + following + RESULT)
        turns.append(Turn(turn, known, rest[:end]))
        rest = rest[end + len(RESULT_END) :]
    return tuple(turns)
