"""Encodes a reply that is learnt: the tokens behind a prompt, as the model's chat template renders the conversation.

Consumes the messages of a prompt and of a reply. Produces tokens with a mask of those that are learnt: all that an
assistant's turn consists of from the point where generation begins to the token that ends the turn. What stands between
two turns is context. Each turn is rendered as the last of its conversation, so that its thoughts are in it: many
templates drop the thoughts of earlier turns, and would render a turn that the model never wrote.

Raises `DataError` for a conversation that the template rejects or renders in a way that generation never meets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from yatt_core.errors import DataError
from yatt_core.prompts.chat_template import ChatTemplate, Tools
from yatt_core.prompts.common_prefix import common_length
from yatt_core.prompts.control_text import ControlText
from yatt_core.prompts.prompt import Message
from yatt_core.protocols.generation import Int32


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """The tokens behind a prompt.

    tokens: [T], int32.
    learnt: whether each of them is learnt, [T].
    missing: number of the prompt's last tokens that the conversation lacks: what the template writes at the beginning of a
        turn that is generated, such as an opening mark of thoughts, but not before this reply.
    """

    tokens: Int32
    learnt: npt.NDArray[np.bool_]
    missing: int = 0


class ReplyEncoder:
    """Encodes replies with a chat template.

    stop_tokens: tokens that end a response.
    end_of_sequence: ends the turns of a template that marks no end.
    """

    def __init__(
        self, template: ChatTemplate, control: ControlText, stop_tokens: Collection[int], end_of_sequence: int
    ) -> None:
        self._template = template
        self._control = control
        self._stop_tokens = frozenset(stop_tokens)
        self._end_of_sequence = end_of_sequence

    def __call__(self, before: Sequence[Message], reply: Sequence[Message], tools: Tools = ()) -> EncodedReply:
        """Returns the tokens of a reply, which begins and ends with an assistant's message, behind those of the prompt."""
        history = list(before)
        tokens = list[int]()
        learnt = list[bool]()
        missing = 0
        for message, following in _turns(reply):
            tail, lacking = self._tail(history, message, tools)
            if tokens:
                del tokens[len(tokens) - lacking :]
                del learnt[len(learnt) - lacking :]
            else:
                missing = lacking
            history.append(message)
            turn = self._ended(tail, message, tools)
            context = list[int]()
            if following is not None:
                turn, context = self._continued(tail=tail, turn=turn, message=message, following=following, tools=tools)
                history.extend(following)
            tokens += [*turn, *context]
            learnt += [*[message.learnt] * len(turn), *[False] * len(context)]
        return EncodedReply(np.array(tokens, dtype=np.int32), np.array(learnt, dtype=np.bool_), missing)

    def _tail(self, history: Sequence[Message], message: Message, tools: Tools) -> tuple[list[int], int]:
        """Returns the tokens behind the point where generation begins, and the number of tokens lacking before it."""
        prompt = self._template.render(history, tools)
        whole = self._template.rendered_turn(history, message, tools)
        prompt_tokens = self._control.encode(prompt)
        tokens = self._control.encode(whole)
        common = common_length(prompt_tokens, tokens)
        if common == len(prompt_tokens):
            return tokens[common:], 0
        if whole.startswith(prompt):
            # Tokens merge across the boundary: the policy meets the prompt's own tokens when it generates.
            return self._control.encode(whole[len(prompt) :], goes_on=True), 0
        bare = self._control.encode(self._template.render(history, tools, generates=False))
        if common < common_length(prompt_tokens, bare):
            raise DataError("is rendered by the model's chat template in another way once a reply follows it")
        return tokens[common:], len(prompt_tokens) - common

    def _ended(self, tail: Sequence[int], message: Message, tools: Tools) -> list[int]:
        """Returns the tokens of a turn up to the one that ends it, without what the template writes behind that."""
        if message.calls:
            return self._ended_call(tail, message, tools)
        behind = self._template.end
        if not behind:
            return [*tail, self._end_of_sequence]
        if self._template.ends_by_next:
            return [*tail, behind[0]]
        end = self._end_place
        turn = list(tail[: len(tail) - (len(behind) - 1 - end)])
        if not turn or turn[-1] != behind[end]:
            raise DataError("has a reply that the model's chat template does not end as it ends others")
        return turn

    @property
    def _end_place(self) -> int:
        """The place, in what the template writes behind a text, of the token that ends the turn."""
        behind = self._template.end
        return next((place for place, token in enumerate(behind) if token in self._stop_tokens), 0)

    def _ended_call(self, tail: Sequence[int], message: Message, tools: Tools) -> list[int]:
        """Returns the tokens of a turn that calls a tool: the last one that ends a response, or else the last mark, ends it."""
        ends = [place for place, token in enumerate(tail) if token in self._stop_tokens]
        if ends:
            return list(tail[: ends[-1] + 1])
        result = Message("tool", "?", name=message.calls[0].name, call_id=message.calls[0].call_id)
        alone, followed = self._template.between(message, [result], tools)
        next_turn = self._control.encode(followed[len(alone) :], goes_on=True) if followed.startswith(alone) else []
        if next_turn:
            return [*tail, next_turn[0]]  # the mark of the next turn ends this one, as in GLM 4.5
        return [*tail, self._end_of_sequence]

    def _continued(
        self, tail: Sequence[int], turn: list[int], message: Message, following: Sequence[Message], tools: Tools
    ) -> tuple[list[int], list[int]]:
        """Returns a turn as it stands within a conversation, and the tokens between it and the next turn."""
        alone, followed = self._template.between(message, following, tools)
        before = self._control.encode(alone, goes_on=True)
        after = self._control.encode(followed, goes_on=True)
        if len(turn) > len(tail):  # the template marks no end; what follows stands behind the turn's text
            if not followed.startswith(alone):
                raise _changed()
            behind = self._control.encode(followed[len(alone) :], goes_on=True)
            if self._template.ends_by_next or message.calls:
                return [*turn[:-1], *behind[:1]], behind[1:]
            return turn, behind
        end = self._place_of_end(before, message)
        common = common_length(before, after)
        if end is None or common < end or end >= len(after):
            raise _changed()
        # The end of a conversation may have a mark of its own, as in gpt-oss; within one, another token ends the turn.
        return [*turn[:-1], after[end]], after[end + 1 :]

    def _place_of_end(self, behind: Sequence[int], message: Message) -> int | None:
        """Returns the place of the token that ends the turn in what the template writes behind its text."""
        if not message.calls:
            return self._end_place
        ends = [place for place, token in enumerate(behind) if token in self._stop_tokens]
        return ends[-1] if ends else None


def _changed() -> DataError:
    return DataError("is rendered by the model's chat template in another way once a message follows the reply")


def _turns(reply: Sequence[Message]) -> Iterator[tuple[Message, Sequence[Message] | None]]:
    """Yields each message of the assistant with the messages before its next one; None after the last."""
    places = [place for place, message in enumerate(reply) if message.role == "assistant"]
    if not places or places[0] != 0 or places[-1] != len(reply) - 1:
        raise DataError("has a reply that does not begin and end with a message of the assistant")
    for number, place in enumerate(places):
        is_last = number + 1 == len(places)
        yield reply[place], None if is_last else reply[place + 1 : places[number + 1]]


def rejected(error: TemplateError) -> DataError:
    """Returns the error for a conversation that a chat template rejects."""
    return DataError(f"is rejected by the model's chat template: {error}")
