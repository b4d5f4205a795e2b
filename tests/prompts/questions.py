"""Prompts of which a test needs little more than the text."""

from __future__ import annotations

from typing import Any

from yatt_core.prompts.prompt import Prompt


def question(text: str, prompt_id: str = "", images: int = 0, **fields: Any) -> Prompt:
    """Returns a prompt without an answer.

    images: number of its images.
    fields: further fields of the prompt.
    """
    return Prompt(0, 0, prompt_id, text, None, {}, media=("picture",) * images, **fields)
