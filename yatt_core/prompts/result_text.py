"""Encodes what separates a turn that calls a tool from the next turn: the result, framed by the model's chat template.

Consumes the text of a result. Produces the tokens that follow those of the turn, up to a given number. For an
assistant's message followed by a tool's, the frame is what the template writes from the end of the assistant's turn to
the point where the assistant continues, apart from the result itself, which stays text whatever it spells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.chat_template import CONTENT, PROBE, QUESTION, ChatTemplate, Tools
from yatt_core.prompts.control_text import ControlText
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.tool_calls import RESULT, RESULT_END, ToolCall
from yatt_core.protocols.generation import Int32
from yatt_core.spec.sections.tools import ToolsSpec

SAMPLE = "a-result"
UNREAD_FORM = (
    "the model's chat template writes calls of tools in a form that YATT does not read; use another model, or a chat template "
    f"that writes {CALL}{{...}}{CALL_END}"
)
"""Why a template's calls cannot be read."""
Frame = Callable[[str, ToolCall | None], list[int]]
"""Returns the tokens between two turns for the text of a result and the call that it answers, if that is known."""


class TagFrame:
    """The frame of a tokenizer without a chat template: tags."""

    def __init__(self, control: ControlText) -> None:
        self._control = control

    def __call__(self, text: str, call: ToolCall | None) -> list[int]:
        """Returns the tokens of a result between tags."""
        return self._control.encode(f"\n{RESULT}{self._control.guard(text)}{RESULT_END}\n", goes_on=True)


class TemplateFrame:
    """The frame of a chat template. Raises `ConfigurationError` if the template does not support tool messages.

    stop_tokens: tokens that end a turn; the policy has generated the one at the frame's beginning.
    """

    def __init__(
        self,
        template: ChatTemplate,
        control: ControlText,
        stop_tokens: Collection[int],
        system: Sequence[Message],
        tools: Tools,
    ) -> None:
        self._template = template
        self._control = control
        self._stop_tokens = frozenset(stop_tokens)
        self._before = [*system, QUESTION]
        self._tools = tools
        try:
            shown = SAMPLE in self._texts(SAMPLE, None)[1]
        except TemplateError as error:
            raise ConfigurationError(
                f"rollout.tools: the model's chat template rejects tool messages: {error}"
            ) from None
        if not shown:
            raise ConfigurationError("rollout.tools: the model's chat template drops tool messages")

    def __call__(self, text: str, call: ToolCall | None) -> list[int]:
        """Returns the tokens between the turn that calls a tool and the next turn."""
        alone, followed = self._texts(text, call)
        if not followed.startswith(alone):
            return self._behind_end(self._control.encode(followed, goes_on=True))
        after = self._control.encode(followed[len(alone) :], goes_on=True)
        ended = self._control.encode(alone, goes_on=True)
        ends = [place for place, token in enumerate(ended) if token in self._stop_tokens]
        if ends:
            return [*ended[ends[-1] + 1 :], *after]
        return self._behind_end(after)

    def _behind_end(self, tokens: list[int]) -> list[int]:
        """Returns the tokens without the one that ends the turn before them, if they begin with it."""
        return tokens[1:] if tokens and tokens[0] in self._stop_tokens else tokens

    def _texts(self, text: str, call: ToolCall | None) -> tuple[str, str]:
        """Returns what the template writes for a message that calls the tool, without and with the result behind it."""
        form = self._template.calls
        name = PROBE.name if call is None else call.name
        call_id = PROBE.call_id if call is None or not call.call_id else call.call_id
        calls = (ToolCall(name, PROBE.arguments, call_id),) if form is not None and form.syntax else ()
        called = Message("assistant", "" if calls else CONTENT, calls=calls)
        result = Message("tool", text, name=name, call_id=call_id)
        return self._template.between(called, [result], self._tools, self._before)


class ResultEncoder:
    """Encodes the tokens between two turns.

    limit: maximum number of tokens.
    """

    def __init__(self, frame: Frame, limit: int) -> None:
        self._frame = frame
        self._limit = limit
        if (bare := len(self._frame(SAMPLE[:1], None))) > limit:
            raise ConfigurationError(
                f"rollout.tools.max_result_tokens: {limit} is too small, because a result of one letter takes {bare} "
                f"tokens in the chat template's frame; expected at least {bare}"
            )

    def __call__(self, text: str, call: ToolCall | None = None) -> tuple[Int32, str]:
        """Returns the tokens [length] and the text that they encode, truncated if it does not fit.

        call: what is answered; None if it is not known.
        """
        kept = text
        tokens = self._frame(text, call)
        if len(tokens) > self._limit:
            low = 0
            high = len(text)
            while low < high:
                middle = (low + high + 1) // 2
                if len(self._frame(text[:middle], call)) <= self._limit:
                    low = middle
                else:
                    high = middle - 1
            kept = text[:low]
            tokens = self._frame(kept, call)
        return np.array(tokens, dtype=np.int32), kept


def check_tools_are_shown(template: ChatTemplate, shown: Tools, system: Sequence[Message], tools: ToolsSpec) -> None:
    """Raises `ConfigurationError` if the descriptions of tools would be dropped silently."""
    rendered = template.render([*system, QUESTION], shown)
    for tool in tools.functions:
        if tool.description and tool.name not in rendered:
            raise ConfigurationError(
                f"rollout.tools.functions {tool.name!r}: the model's chat template does not show tools; leave the "
                "description out and describe the tool in data.system_prompt or in the prompts"
            )


def unread_calls(template: ChatTemplate, shown: Tools, system: Sequence[Message], texts: Iterable[str]) -> str:
    """Returns why the calls that a chat template leads to cannot be read; empty if they can.

    A template that writes no calls leaves their form to the prompts. If it shows the tools, the model calls them in the form that
    it has learnt with this template, unless it is told another one.

    shown: the tools that it shows; system: the spec's system message.
    texts: other texts that may tell the form.
    """
    if template.calls is None or template.calls.syntax:
        return ""
    if template.writes_parts_of_calls:
        return UNREAD_FORM
    told = not shown or CALL in template.render([*system, QUESTION], shown) or any(CALL in text for text in texts)
    if not told:
        return (
            "the model's chat template shows the tools, but writes no calls, so that nothing says how the model calls them; use "
            f"a chat template that writes {CALL}{{...}}{CALL_END}, tell this form in data.system_prompt, or leave the "
            "descriptions out and describe the tools in the prompts"
        )
    return ""
