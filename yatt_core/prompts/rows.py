"""Rows that a run learns from without sampling: their responses, and the tokens of each.

Consumes prompts with their original rows. Raises `DataError`, which names the prompt, and with it file and row, for a
row that the run's objective cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import DataError, TooLongError
from yatt_core.prompts.codec import TextCodec, encode_question
from yatt_core.prompts.keys import MISSING, hint, value_at
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.replies import EncodedReply
from yatt_core.prompts.responses import Messages, divided, reply_of
from yatt_core.prompts.tool_calls import split_turns
from yatt_core.protocols.generation import Int32
from yatt_core.spec.objective import KtoObjective, RewardModelObjective, SftObjective
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import FileSource, Source

LABELS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}
"""How texts say whether a response is desirable."""


@dataclass(frozen=True, slots=True)
class RowResponses:
    """The responses in a row: the preferred one and the other one, or a single one.

    desirable: the label of a single response; True without labels.
    """

    replies: tuple[Messages, ...]
    desirable: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of all messages."""
        return tuple(message.content for reply in self.replies for message in reply)


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A prompt and a response as tokens, and whether the response was cut.

    learnt: which tokens of the response are learnt, [T]; the others stand between two turns.

    A reward model reads both as one text, `prompt`; its response is a single token, which it never sees, in whose place
    the head's output stands.
    """

    prompt: Int32
    response: Int32
    learnt: npt.NDArray[np.bool_]
    truncated: bool


def responses_of(spec: RunSpec, prompt: Prompt) -> RowResponses:
    """Returns the responses that a run's objective needs from a row."""
    source = spec.data.sources[prompt.source]
    if isinstance(spec.objective, SftObjective):
        return RowResponses((_answer(prompt, source),))
    assert isinstance(source, FileSource), "other sources have no preferences, as the spec has been checked for"
    if isinstance(spec.objective, KtoObjective):
        return RowResponses((_answer(prompt, source),), _label(prompt, source.label_field))
    return RowResponses(_pair(prompt, source))


def encode_response(spec: RunSpec, codec: TextCodec, prompt: Prompt, reply: Messages) -> EncodedResponse:
    """Returns the tokens of a prompt with a response. Raises `TooLongError` if they are too many and may not be cut."""
    if isinstance(spec.objective, RewardModelObjective):
        return _judged(spec, codec, prompt, reply)
    encoded = codec.encode_reply(prompt, reply)
    if prompt.is_text_alone:  # the first token is never learnt: nothing is before it
        question = encoded.tokens[:1]
        answer = encoded.tokens[1:]
        learnt = encoded.learnt[1:]
    else:
        whole = encode_question(prompt, codec)
        question = whole[: len(whole) - encoded.missing]
        answer = encoded.tokens
        learnt = encoded.learnt
    most = spec.rollout.max_new_tokens
    may_cut = spec.data.over_long in ("cut_start", "cut_end")
    if len(answer) > most and not may_cut:
        raise TooLongError(
            f"prompt {prompt.prompt_id}: its response has {len(answer)} tokens, but rollout.max_new_tokens is {most}; "
            "raise it, or use data.over_long"
        )
    if not learnt[:most].any():
        raise DataError(
            f"prompt {prompt.prompt_id}: nothing that is learnt is among the first {most} tokens of its response, to which it is "
            "cut; raise rollout.max_new_tokens, or use data.over_long: skip"
        )
    return EncodedResponse(question, answer[:most], learnt[:most], len(answer) > most)


def check_responses(spec: RunSpec, codec: TextCodec, prompt: Prompt) -> None:
    """Raises as `responses_of` and `encode_response` do, if the run learns from rows.

    A run that samples needs a prompt to continue: a conversation that ends with the assistant's message is none.
    """
    if not spec.samples_responses:
        for reply in responses_of(spec, prompt).replies:
            encode_response(spec, codec, prompt, reply)
        return
    source = spec.data.sources[prompt.source]
    if not isinstance(source, FileSource):
        return
    if prompt.is_text_alone:
        raise DataError(
            f"prompt {prompt.prompt_id}: the row has no prompt, and the run samples responses; name its key"
        )
    if prompt.reply and value_at(prompt.entry, source.answer_field) is None:
        raise DataError(
            f"prompt {prompt.prompt_id}: the conversation ends with the role assistant: it is a demonstration; expected a "
            "last message of the user, and the answer in a key of its own, or objective: {kind: sft} to learn from it"
        )


def encode_demonstration(prompt: Prompt, codec: TextCodec, several_turns: bool) -> EncodedReply:
    """Returns the tokens of a prompt's demonstrated messages, or of the text of its answer."""
    if prompt.reply:
        return codec.encode_reply(prompt, prompt.reply)
    answer = prompt.answer or ""
    turns, results = split_turns(answer) if several_turns else ([answer], [])
    first, *others = [codec.encode_reply(prompt, [Message("assistant", turn)]) for turn in turns]
    tokens = [first.tokens]
    learnt = [first.learnt]
    for result, turn in zip(results, others, strict=True):
        between, _ = codec.encode_result(result)
        between = between[: len(between) - turn.missing]
        tokens += [between, turn.tokens]
        learnt += [np.zeros(len(between), dtype=np.bool_), turn.learnt]
    return EncodedReply(np.concatenate(tokens), np.concatenate(learnt), first.missing)


def _judged(spec: RunSpec, codec: TextCodec, prompt: Prompt, reply: Messages) -> EncodedResponse:
    template = spec.objective.template if isinstance(spec.objective, RewardModelObjective) else None
    messages = (*prompt.messages, *reply)
    if any(message.calls for message in messages):
        raise DataError(f"prompt {prompt.prompt_id}: a reward model reads no calls of tools; leave such rows out")
    if any(message.thoughts for message in messages):
        raise DataError(
            f"prompt {prompt.prompt_id}: a reward model reads no thoughts in a key of their own; write them into the content, "
            "between the model's marks of thoughts, or leave them out"
        )
    try:
        tokens = codec.encode_judged(template, prompt, reply)
    except DataError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {error}") from None
    most = spec.data.max_prompt_tokens + spec.rollout.max_new_tokens
    if len(tokens) > most:
        raise TooLongError(
            f"prompt {prompt.prompt_id} has {len(tokens)} tokens with its response, but data.max_prompt_tokens and "
            f"rollout.max_new_tokens allow {most}; raise them, or use data.over_long: skip"
        )
    return EncodedResponse(tokens, np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.bool_), False)


def _answer(prompt: Prompt, source: Source) -> Messages:
    if prompt.reply:
        return prompt.reply
    if prompt.answer is None:
        key = source.answer_field if isinstance(source, FileSource) else "answer"
        raise DataError(f"prompt {prompt.prompt_id}: the row has no response under the key {key!r}")
    if prompt.other_answers:
        raise DataError(
            f"prompt {prompt.prompt_id}: the row has {1 + len(prompt.other_answers)} answers; expected one to learn from"
        )
    return (Message("assistant", prompt.answer),)


def _pair(prompt: Prompt, source: FileSource) -> tuple[Messages, ...]:
    """Returns the preferred and the other response of a row."""
    keys = (source.chosen_field, source.rejected_field)
    values = [_value(prompt, key) for key in keys]
    try:
        if source.prompt_field is None and source.prompt_template is None:
            both = divided(values[0], values[1], source)
            return both.chosen, both.rejected
    except DataError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {keys[0]!r} and {keys[1]!r} {error}") from None
    return tuple(_response(prompt, key, value, source) for key, value in zip(keys, values, strict=True))


def _response(prompt: Prompt, key: str, value: Any, source: FileSource) -> Messages:
    """Returns a response behind a prompt of its own, which may repeat that prompt."""
    before = prompt.messages or (Message("user", prompt.text),)
    try:
        reply = reply_of(value, before, source)
        if reply is None and not isinstance(value, str):
            raise DataError(f"is {type(value).__name__}; expected a string, or messages that end with the assistant's")
    except DataError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {key!r} {error}") from None
    return (Message("assistant", value),) if reply is None else reply


def _value(prompt: Prompt, key: str) -> Any:
    value = value_at(prompt.entry, key, MISSING)
    if value is MISSING:
        raise DataError(
            f"prompt {prompt.prompt_id}: the row has no key {key!r} for a response (data.sources chosen_field, "
            f"rejected_field); {hint(key, prompt.entry)}"
        )
    return value


def _label(prompt: Prompt, key: str) -> bool:
    value = value_at(prompt.entry, key)
    if isinstance(value, str):  # every value of a CSV file is text
        value = LABELS.get(value.strip().lower(), value)
    if value is None or value not in (True, False):
        raise DataError(
            f"prompt {prompt.prompt_id}: {key!r} is {value!r}; expected true or false (data.sources label_field)"
        )
    return bool(value)


def mask_of(responses: Sequence[EncodedResponse]) -> npt.NDArray[np.bool_]:
    """Returns which tokens of some responses are learnt, [T] of all of them."""
    return np.concatenate([encoded.learnt for encoded in responses])
