"""The form in which a reward model reads a prompt with its response, in training and as a judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from yatt_core.errors import DataError
from yatt_core.models.template_rendering import render_messages
from yatt_core.spec.template import PROMPT, RESPONSE, pieces_of


class TextGuard(Protocol):
    """Keeps control tokens out of the texts of others: `yatt_core.prompts.control_text.ControlText`."""

    def guard(self, text: str) -> str:
        """Returns a text in which no control token is spelled."""
        ...

    def guard_special(self, text: str) -> str:
        """Returns the text of an assistant, in which marks of thoughts and calls are spelled, but no other control token."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text in which others are guarded, [length]."""
        ...

    def encode_framed(self, text: str) -> list[int]:
        """Returns the tokens of such a text with those that begin and end a text, [length]."""
        ...


Said = tuple[str, str]
"""Role and text of a message."""


def reward_tokens(
    tokenizer: Any,
    control: TextGuard,
    template: str | None,
    prompt: str,
    messages: Sequence[Said],
    reply: Sequence[Said],
) -> list[int]:
    """Returns the tokens of prompt and response in the template, or, without one, in the tokenizer's chat template.

    What prompt and response spell stays text, but for the response's own marks of thoughts and calls: they are the tokens that
    the policy wrote.

    messages: the conversation of which the prompt is the transcript; empty for a single question.
    reply: the messages of the response; a template shows their texts.

    Raises `DataError` if the chat template rejects them.
    """
    if template is not None:
        texts = {PROMPT: prompt, RESPONSE: "\n\n".join(text for _, text in reply)}
        guards = {PROMPT: control.guard, RESPONSE: control.guard_special}
        pieces = [(text, "" if name is None else guards[name](texts[name])) for text, name in pieces_of(template)]
        return control.encode_framed("".join(text + value for text, value in pieces))
    conversation = [*(messages or [("user", prompt)]), *reply]
    given = [
        {"role": role, "content": control.guard_special(text) if role == "assistant" else control.guard(text)}
        for role, text in conversation
    ]
    try:
        rendered = render_messages(tokenizer, given)
    except TemplateError as error:
        raise DataError(f"the reward model's chat template rejects the conversation: {error}") from None
    return control.encode(rendered)
