"""The form in which a reward model reads a prompt with its response, in training and as a judge."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from yatt_core.errors import DataError
from yatt_core.spec.template import PROMPT, RESPONSE, pieces_of

TEMPLATE_DATE = "26 Jul 2024"
"""The date given to chat templates that use one; it is constant, so that prompts are the same every day."""


def reward_tokens(tokenizer: Any, template: str | None, prompt: str, response: str) -> list[int]:
    """Returns the tokens of prompt and response in the template, or, without one, in the tokenizer's chat template.

    Raises `DataError` if the chat template rejects them.
    """
    if template is not None:
        texts = {PROMPT: prompt, RESPONSE: response}
        filled = "".join(text + ("" if name is None else texts[name]) for text, name in pieces_of(template))
        return list(tokenizer(filled)["input_ids"])
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    try:
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, date_string=TEMPLATE_DATE, strftime_now=lambda _: TEMPLATE_DATE
        )
    except TemplateError as error:
        raise DataError(f"the reward model's chat template rejects the conversation: {error}") from None
    return list(tokenizer(str(rendered), add_special_tokens=False)["input_ids"])
