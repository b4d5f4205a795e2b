"""A prompt, and what is known about a response to it: plain data, without heavy imports for the reward process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from yatt_core.prompts.reading import UNKNOWN, Reading
from yatt_core.prompts.thoughts import Split, split_thoughts
from yatt_core.prompts.tool_calls import RESULT, RESULT_END, ToolCall, read_call

STOPPED = "stop"
"""Why a response ended that was not cut."""

Reads = Literal["last_turn", "response", "final"]
"""A part of a response: its last turn, all of its turns with calls and results, or the last turn without its thoughts."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    role: `system`, `user`, `assistant` or `tool`.
    content: its text; may be empty for a message that only calls tools.
    thoughts: what the assistant thought before the text, if the row has it in a key of its own.
    calls: the tools that an assistant's message calls.
    name: the tool that a result comes from, or the name of the one who speaks; empty if unknown.
    call_id: the call that a result answers; empty if unknown.
    learnt: whether training learns an assistant's message; otherwise it is context.
    """

    role: str
    content: str
    thoughts: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str = ""
    call_id: str = ""
    learnt: bool = True

    def plain(self) -> list[Any]:
        """Returns the message as JSON values: role and content, and an object of the fields that are not the default."""
        more: dict[str, Any] = {}
        for field in ("thoughts", "name", "call_id"):
            if value := getattr(self, field):
                more[field] = value
        if self.calls:
            more["calls"] = [[call.name, dict(call.arguments), call.call_id] for call in self.calls]
        if not self.learnt:
            more["learnt"] = False
        return [self.role, self.content, more] if more else [self.role, self.content]

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Message:
        """Returns the message of which `plain` returned the values."""
        role, content, *rest = plain
        more = dict(rest[0]) if rest else {}
        calls = tuple(ToolCall(name, arguments, call_id) for name, arguments, call_id in more.pop("calls", ()))
        return cls(role, content, calls=calls, **more)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task.

    source: index of its source in the spec's mixture.
    index: number of the prompt's row among the source's rows of the same split.
    text: the question, or the transcript of a conversation.
    prompt_id: an id that is unique within a run's inputs and names split, source and original row.
    answer: the reference answer; None if the row has none.
    other_answers: further right answers, if the row has several.
    entry: the original row as plain JSON values, for the reward functions.
    media: content addresses of its images, in the order in which they appear in the text.
    messages: the conversation; empty for a single question.
    reply: the messages of a demonstration, from the assistant's first after the prompt to its last; empty if the row has
        no more than the text of an answer.
    tools: descriptions of the tools that the row's conversation may call, in the form of chat templates.
    rendered: whether the text is what the model reads, without its chat template.
    """

    source: int
    index: int
    prompt_id: str
    text: str
    answer: str | None
    entry: Mapping[str, Any]
    media: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    other_answers: tuple[str, ...] = ()
    reply: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    rendered: bool = False

    @property
    def is_text_alone(self) -> bool:
        """Whether there is no prompt: the text of the answer is learnt as a whole."""
        return not self.text and not self.messages


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
    stop_reason: `stop`; `length` if the response was cut; `turns` if it had no turn left for a call; `tool` if a
        tool got no answer.
    reading: how its turns are read: what thoughts are marked by, and what the chat template wrote at their beginning, which is
        part of the texts.
    """

    text: str
    last_turn: str
    tokens: int
    stop_reason: str = STOPPED
    turns: tuple[Turn, ...] = ()
    token_ids: tuple[int, ...] = ()
    reading: Reading = UNKNOWN

    @classmethod
    def of_turns(
        cls,
        text: str,
        spoken: Sequence[str],
        tokens: int,
        stop_reason: str = STOPPED,
        token_ids: Sequence[int] = (),
        reading: Reading = UNKNOWN,
    ) -> Completion:
        """Returns a response; the arguments are those of `turns_of`, and the fields of the class."""
        return cls(
            text=text,
            last_turn=spoken[-1],
            tokens=tokens,
            stop_reason=stop_reason,
            turns=turns_of(text, spoken, reading),
            token_ids=tuple(token_ids),
            reading=reading,
        )

    @property
    def prefill(self) -> str | None:
        """What the chat template wrote at the beginning of the policy's turns; None if that is not known."""
        return self.reading.prefill

    @property
    def thoughts(self) -> str:
        """The thoughts of the last turn, without their marks; empty if there are none."""
        return self.split("last_turn").thoughts

    @property
    def final(self) -> str:
        """The last turn without its thoughts; empty if they do not end."""
        return self.split("last_turn").final

    def read(self, reads: Reads) -> str:
        """Returns a part of the response."""
        match reads:
            case "last_turn":
                return self.last_turn
            case "response":
                return self.text
            case "final":
                return self.final

    def split(self, reads: Reads) -> Split:
        """Returns the thoughts and the final text of what `read` returns; those of the last turn for its final text."""
        return split_thoughts(self.text if reads == "response" else self.last_turn, self.reading.marks)


def turns_of(text: str, spoken: Sequence[str], reading: Reading = UNKNOWN) -> tuple[Turn, ...]:
    """Returns the turns of a response.

    text: text of the whole response.
    spoken: text of each of the policy's turns. With it, tags that the policy wrote itself are not taken for results.
    """
    turns = []
    rest = text
    for number, turn in enumerate(spoken):
        call = read_call(turn, reading)
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
