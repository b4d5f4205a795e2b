"""Rows that a run learns from without sampling: their responses, and the tokens of each.

Consumes prompts with their original rows. Raises `DataError`, which names the prompt, and with it file and row, for a
row that the run's objective cannot use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yatt_core.errors import DataError, TooLongError
from yatt_core.prompts.codec import TextCodec, encode_question
from yatt_core.prompts.conversations import read_response
from yatt_core.prompts.prompt import Prompt
from yatt_core.protocols.generation import Int32
from yatt_core.spec.objective import KtoObjective, RewardModelObjective, SftObjective
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import FileSource, Source


@dataclass(frozen=True, slots=True)
class Responses:
    """The responses in a row: the preferred one and the other one, or a single one.

    desirable: the label of a single response; True without labels.
    """

    texts: tuple[str, ...]
    desirable: bool = True


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A prompt and a response as tokens, and whether the response was cut.

    A reward model reads both as one text, `prompt`; its response is a single token, which it never sees, in whose place
    the head's output stands.
    """

    prompt: Int32
    response: Int32
    truncated: bool


def responses_of(spec: RunSpec, prompt: Prompt) -> Responses:
    """Returns the responses that a run's objective needs from a row."""
    source = spec.data.sources[prompt.source]
    if isinstance(spec.objective, SftObjective):
        return Responses((_answer(prompt, source),))
    assert isinstance(source, FileSource), "other sources have no preferences, as the spec has been checked for"
    if isinstance(spec.objective, KtoObjective):
        return Responses((_answer(prompt, source),), _label(prompt, source.label_field))
    return Responses(tuple(_response(prompt, key) for key in (source.chosen_field, source.rejected_field)))


def encode_response(spec: RunSpec, codec: TextCodec, prompt: Prompt, text: str) -> EncodedResponse:
    """Returns the tokens of a prompt with a response. Raises `TooLongError` if they are too many and may not be cut."""
    if isinstance(spec.objective, RewardModelObjective):
        return _judged(spec, codec, prompt, text)
    question, answer = encode_question(prompt, codec), codec.encode_answer(text)
    most, may_cut = spec.rollout.max_new_tokens, spec.data.over_long in ("cut_start", "cut_end")
    if len(answer) > most and not may_cut:
        raise TooLongError(
            f"prompt {prompt.prompt_id}: its response has {len(answer)} tokens, but rollout.max_new_tokens is {most}; "
            "raise it, or use data.over_long"
        )
    return EncodedResponse(question, answer[:most], len(answer) > most)


def check_responses(spec: RunSpec, codec: TextCodec, prompt: Prompt) -> None:
    """Raises as `responses_of` and `encode_response` do, if the run learns from rows."""
    if not spec.samples_responses:
        for text in responses_of(spec, prompt).texts:
            encode_response(spec, codec, prompt, text)


def _judged(spec: RunSpec, codec: TextCodec, prompt: Prompt, text: str) -> EncodedResponse:
    template = spec.objective.template if isinstance(spec.objective, RewardModelObjective) else None
    try:
        tokens = codec.encode_judged(template, prompt.text, text)
    except DataError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {error}") from None
    most = spec.data.max_prompt_tokens + spec.rollout.max_new_tokens
    if len(tokens) > most:
        raise TooLongError(
            f"prompt {prompt.prompt_id} has {len(tokens)} tokens with its response, but data.max_prompt_tokens and "
            f"rollout.max_new_tokens allow {most}; raise them, or use data.over_long: skip"
        )
    return EncodedResponse(tokens, np.zeros(1, dtype=np.int32), False)


def _answer(prompt: Prompt, source: Source) -> str:
    if prompt.answer is None:
        key = source.answer_field if isinstance(source, FileSource) else "answer"
        raise DataError(f"prompt {prompt.prompt_id}: the row has no response under the key {key!r}")
    return prompt.answer


def _response(prompt: Prompt, key: str) -> str:
    if key not in prompt.entry:
        raise DataError(
            f"prompt {prompt.prompt_id}: the row has no key {key!r} for a response (data.sources chosen_field, "
            f"rejected_field); its keys: {', '.join(prompt.entry) or 'none'}"
        )
    before: Sequence[str] = [message.content for message in prompt.messages] or [prompt.text]
    try:
        return read_response(prompt.entry[key], before)
    except DataError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {key!r} {error}") from None


def _label(prompt: Prompt, key: str) -> bool:
    value = prompt.entry.get(key)
    if value is None or value not in (True, False):
        raise DataError(
            f"prompt {prompt.prompt_id}: {key!r} is {value!r}; expected true or false (data.sources label_field)"
        )
    return bool(value)
