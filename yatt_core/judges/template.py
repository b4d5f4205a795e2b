"""Fills in a judge's template. Consumes the template and an item; produces a text, or pieces marked as trusted or not.

Inserted values are never searched for placeholders: braces in a response stay braces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.errors import DataError
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.template import ANSWER, FINAL, PROMPT, STEPS, THOUGHTS, pieces_of


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A piece of a filled-in template.

    name: the placeholder that it replaces; None for the template's own text, which is trusted.
    """

    text: str
    name: str | None = None


def filled(template: str, item: JudgeItem) -> Sequence[TemplatePiece]:
    """Returns the template filled with an item's texts.

    Raises `DataError` if it needs a reference answer that the item lacks.
    """
    pieces = []
    for text, name in pieces_of(template):
        if text:
            pieces.append(TemplatePiece(text))
        if name is not None:
            pieces.append(TemplatePiece(_value(name, item), name))
    return pieces


def filled_text(template: str, item: JudgeItem) -> str:
    """Returns the filled-in template as one string. Raises as `filled` does."""
    return "".join(piece.text for piece in filled(template, item))


def _value(name: str, item: JudgeItem) -> str:
    if name == PROMPT:
        return item.prompt
    if name == ANSWER:
        if item.answer is None:
            raise DataError("the template contains {answer}, but the prompt has no reference answer")
        return item.answer
    if name == STEPS:
        return "\n".join(f"[{number}] {step.strip()}" for number, step in enumerate(item.steps, start=1))
    if name == THOUGHTS:
        return item.thoughts
    if name == FINAL:
        return item.final
    return item.response
