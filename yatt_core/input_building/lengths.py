"""Finds the lengths of many prompts, and encodes only those whose bytes do not show that they matter.

Consumes prompts and the run's codec. Produces those that had to be encoded, with their tokens or the error, and the longest.
A prompt matters if it may be too long or the longest; which ones are, and how long, is as if all had been encoded.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from yatt_core.errors import DataError
from yatt_core.input_building.prompt_tokens import longer, prompt_tokens
from yatt_core.progress import log_progress
from yatt_core.prompts.codec import TextCodec, longest_prompt
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.token_bounds import FrameSavings, TokenBound
from yatt_core.spec.run import RunSpec

log = logging.getLogger(__name__)
PROMPTS_PER_WORD = 10_000
"""Number of prompts between two progress log lines."""
PLAIN = "?"
"""Stands for the texts of others in a frame."""


class PromptLengths:
    """The lengths of prompts, file after file.

    model_path: as for `open_codec`.
    known: bounds of prompts of the only file, by their number, as `PromptBound` tells them.
    longest: the manifest's entry about the longest prompt so far; of equal ones, the first.
    """

    def __init__(
        self, spec: RunSpec, codec: TextCodec, model_path: str, known: Mapping[int, int | None] | None = None
    ) -> None:
        self._spec = spec
        self._codec = codec
        self._known = known or {}
        self._room = longest_prompt(spec, model_path, roomless=True)
        self._bound = bound_of(spec, codec)
        self.longest: dict[str, Any] = {"prompt_id": "", "tokens": 0}
        self._count = 0

    def encoded(self, prompts: PromptFile | Sequence[Prompt]) -> Iterator[tuple[int, Prompt, int | DataError]]:
        """Yields each prompt that must be encoded, with its number from 0, and its tokens or why it cannot be used."""
        for number, most in enumerate(self._bounds(prompts)):
            self._count += 1
            if self._count % PROMPTS_PER_WORD == 0:
                log_progress(log, f"{self._count:,} prompts measured")
            if most is not None and most <= self._room and most <= self.longest["tokens"]:
                continue
            prompt = prompts[number]
            try:
                tokens = prompt_tokens(self._spec, self._codec, prompt)
            except DataError as error:
                yield number, prompt, error
                continue
            self.longest = longer(self.longest, prompt, tokens)
            yield number, prompt, tokens

    def forget_bounds(self) -> None:
        """Ends the first file, to which the known bounds belong."""
        self._known = {}

    def _bounds(self, prompts: PromptFile | Sequence[Prompt]) -> Iterator[int | None]:
        """Yields the bound of each prompt; None where there is none."""
        if self._bound is None:
            yield from itertools.repeat(None, len(prompts))
        elif len(self._known) == len(prompts):
            yield from (self._known[number] for number in range(len(prompts)))
        else:
            shown = prompts.questions() if isinstance(prompts, PromptFile) else prompts
            for number, prompt in enumerate(shown):
                yield self._known[number] if number in self._known else self._bound.most(prompt)


class PromptBound:
    """An upper bound on the tokens of prompts that are text alone."""

    def __init__(self, codec: PromptCodec, bound: TokenBound) -> None:
        self._codec = codec
        self._bound = bound
        self._frames: dict[tuple[str, ...], tuple[FrameSavings, tuple[int, ...]]] = {}

    def most(self, prompt: Prompt) -> int | None:
        """Returns the greatest number of tokens that a prompt can have; None if unknown, or if it cannot be encoded."""
        if prompt.media or prompt.tools or prompt.rendered or prompt.reply or prompt.is_text_alone:
            return None
        if not all(map(_is_plain, prompt.messages)):
            return None
        contents = [message.content for message in prompt.messages] or [prompt.text]
        try:
            whole = self._codec.shown(prompt)
            if self._codec.tokenizer.chat_template is None:
                most = self._bound.most(whole)
                return None if most is None or not (whole and self._bound.some) else most + self._bound.specials
            savings, counts = self._frame(prompt)
        except DataError:  # told when the prompt is encoded
            return None
        most = self._bound.most(whole)
        if most is None or savings.counts(whole) != counts:
            return None
        for content in contents:
            if any(savings.counts(content)):  # it may be encoded as text, and not as the special token that it spells
                return None
        return most - savings.tokens(counts) if any(counts) or self._bound.some else None

    def _frame(self, prompt: Prompt) -> tuple[FrameSavings, tuple[int, ...]]:
        """Returns the savings of the frame around a conversation of such roles, and how often its tokens occur."""
        roles = tuple(message.role for message in prompt.messages)
        if roles not in self._frames:
            plain = tuple(Message(role, PLAIN) for role in roles)
            frame = self._codec.shown(replace(prompt, text=PLAIN, messages=plain))
            savings = FrameSavings.of(self._codec.tokenizer, frame)
            self._frames[roles] = savings, savings.counts(frame)
        return self._frames[roles]


def bound_of(spec: RunSpec, codec: TextCodec) -> PromptBound | None:
    """Returns the bound for a run's prompts; None if nothing is sure, or if more than the prompt is encoded."""
    distillation = spec.algorithm.distillation
    privileged = distillation is not None and distillation.privileged is not None
    if not isinstance(codec, PromptCodec) or privileged or not spec.samples_responses or spec.data.has_images:
        return None
    bound = TokenBound.of(codec.tokenizer)
    return None if bound is None else PromptBound(codec, bound)


def _is_plain(message: Message) -> bool:
    return message == Message(message.role, message.content)
