"""Fills a judge's template in. Consumes the template and an item; produces a text, or pieces that tell ours from theirs.

Values are put in once and never looked at again: braces in a response stay braces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.errors import DataError
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.template import ANSWER, PROMPT, pieces_of


@dataclass(frozen=True, slots=True)
class Piece:
    """name: of the placeholder whose value it is; none for the template's own text, which nobody else had a hand in."""

    text: str
    name: str | None = None


def filled(template: str, item: JudgeItem) -> Sequence[Piece]:
    """The template with an item's texts in it. Raises `DataError` where it shows a reference answer that the item lacks."""
    pieces = []
    for text, name in pieces_of(template):
        if text:
            pieces.append(Piece(text))
        if name is not None:
            pieces.append(Piece(_value(name, item), name))
    return pieces


def filled_text(template: str, item: JudgeItem) -> str:
    """The same as one text. Raises as `filled`."""
    return "".join(piece.text for piece in filled(template, item))


def _value(name: str, item: JudgeItem) -> str:
    if name == PROMPT:
        return item.prompt
    if name == ANSWER:
        if item.answer is None:
            raise DataError("the template shows {answer}, and the prompt has no reference answer")
        return item.answer
    return item.response
