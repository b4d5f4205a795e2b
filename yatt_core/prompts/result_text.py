"""Encodes what separates a turn that calls a tool from the next turn: the result, framed by the model's chat template.

Consumes the text of a result. Produces the tokens that follow those of the turn, up to a given number. For an
assistant message followed by a tool message, the frame is what the template writes between the assistant's text and
the point where the assistant continues, apart from the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.tool_calls import write_result
from yatt_core.protocols.generation import Int32
from yatt_core.spec.sections.tools import ToolsSpec

ChatMessage = dict[str, str]
"""A message as chat templates expect it."""
Render = Callable[[Sequence[ChatMessage]], str]

TURN = "the-turn-before-the-result"
SAMPLE = "a-result"
QUESTION: ChatMessage = {"role": "user", "content": "?"}


def frame_by_tags(text: str) -> str:
    """Returns the result framed for a tokenizer without a chat template."""
    return f"\n{write_result(text)}\n"


class TemplateFrame:
    """The frame of a chat template. Raises `ConfigurationError` if the template does not support tool messages."""

    def __init__(self, render: Render, system: Sequence[ChatMessage]) -> None:
        self._render, self._before = render, [*system, QUESTION, {"role": "assistant", "content": TURN}]
        try:
            shown = SAMPLE in self(SAMPLE)
        except TemplateError as error:
            raise ConfigurationError(
                f"rollout.tools: the model's chat template rejects tool messages: {error}"
            ) from None
        if not shown:
            raise ConfigurationError("rollout.tools: the model's chat template drops tool messages")

    def __call__(self, text: str) -> str:
        """Returns what follows the text of the assistant message."""
        return self._render([*self._before, {"role": "tool", "content": text}]).partition(TURN)[2]


class ResultEncoder:
    """Encodes the tokens between two turns.

    encode: returns the tokens of a text and recognises special tokens.
    limit: maximum number of tokens.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        frame: Callable[[str], str],
        stop_tokens: Sequence[int],
        limit: int,
    ) -> None:
        self._encode, self._frame, self._stop_tokens, self._limit = encode, frame, stop_tokens, limit
        if (bare := len(self._tokens(SAMPLE[:1]))) > limit:
            raise ConfigurationError(
                f"rollout.tools.max_result_tokens: {limit} is too small, because a result of one letter takes {bare} "
                f"tokens in the chat template's frame; expected at least {bare}"
            )

    def __call__(self, text: str) -> tuple[Int32, str]:
        """Returns the tokens [length] and the text that they encode, truncated if it does not fit."""
        kept = text
        if len(tokens := self._tokens(text)) > self._limit:
            low, high = 0, len(text)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if len(self._tokens(text[:middle])) <= self._limit else (low, middle - 1)
            kept = text[:low]
            tokens = self._tokens(kept)
        return np.array(tokens, dtype=np.int32), kept

    def _tokens(self, text: str) -> list[int]:
        tokens = self._encode(self._frame(text))
        # The template's text begins with the end of the assistant message, which the policy has already generated.
        return tokens[1:] if tokens and tokens[0] in self._stop_tokens else tokens


def check_tools_are_shown(
    template: str | None, render: Render, system: Sequence[ChatMessage], tools: ToolsSpec
) -> None:
    """Raises `ConfigurationError` if the descriptions of tools would be dropped silently."""
    rendered = "" if template is None else render([*system, QUESTION])
    for tool in tools.functions:
        if tool.description and tool.name not in rendered:
            raise ConfigurationError(
                f"rollout.tools.functions {tool.name!r}: the model's chat template does not show tools; leave the "
                "description out and describe the tool in data.system_prompt or in the prompts"
            )
