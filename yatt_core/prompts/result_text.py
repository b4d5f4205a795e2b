"""What stands between a turn that calls a tool and the next turn: the result, as the model's chat template frames it.

Consumes a result's text; produces tokens that follow those of the turn, at most a given number. The frame is what the
template puts behind an assistant's message that is followed by a tool's, up to where the assistant goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.tool_calls import write_result
from yatt_core.protocols.generation import Int32
from yatt_core.spec.sections.tools import ToolsSpec

Message = dict[str, str]
Render = Callable[[Sequence[Message]], str]

TURN = "the-turn-before-the-result"
SAMPLE = "a-result"
QUESTION: Message = {"role": "user", "content": "?"}


def frame_by_tags(text: str) -> str:
    """The frame of a tokenizer without a chat template."""
    return f"\n{write_result(text)}\n"


class TemplateFrame:
    """The frame of a chat template. Raises `ConfigurationError` for one that takes no message of a tool."""

    def __init__(self, render: Render, system: Sequence[Message]) -> None:
        self._render, self._before = render, [*system, QUESTION, {"role": "assistant", "content": TURN}]
        try:
            shown = SAMPLE in self(SAMPLE)
        except TemplateError as error:
            raise ConfigurationError(
                f"rollout.tools: the model's chat template refuses a tool's message: {error}"
            ) from None
        if not shown:
            raise ConfigurationError("rollout.tools: the model's chat template does not show what a tool answers")

    def __call__(self, text: str) -> str:
        """What follows the text of the assistant's message."""
        return self._render([*self._before, {"role": "tool", "content": text}]).partition(TURN)[2]


class ResultEncoder:
    """Tokens between two turns. encode: tokens of a text, special ones recognised. limit: most tokens."""

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
                f"rollout.tools.max_result_tokens: in the chat template's frame a result of one letter takes {bare} tokens, "
                f"{limit} are allowed; raise it"
            )

    def __call__(self, text: str) -> tuple[Int32, str]:
        """Tokens [length], and the text that they hold: its beginning, where not all of it fits."""
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
        # The template ends the assistant's message; the policy has done that itself.
        return tokens[1:] if tokens and tokens[0] in self._stop_tokens else tokens


def check_tools_are_shown(template: str | None, render: Render, system: Sequence[Message], tools: ToolsSpec) -> None:
    """Raises `ConfigurationError` where the descriptions of tools would be lost in silence."""
    rendered = "" if template is None else render([*system, QUESTION])
    for tool in tools.functions:
        if tool.description and tool.name not in rendered:
            raise ConfigurationError(
                f"rollout.tools.functions {tool.name!r}: the model's chat template shows no tools; leave the description out "
                "and tell of the tool in data.system_prompt or in the prompts"
            )
