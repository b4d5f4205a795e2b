"""Templates of prompts for judges and teachers: text with placeholders, filled in without executing anything."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter

PROMPT = "prompt"
RESPONSE = "response"
ANSWER = "answer"
STEPS = "steps"
THOUGHTS = "thoughts"
FINAL = "final"


def fields_of(template: str) -> frozenset[str]:
    """Returns the names of a template's placeholders. Raises `ValueError` as `pieces_of` does."""
    return frozenset(name for _, name in pieces_of(template) if name is not None)


def pieces_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yields pairs of literal text and the placeholder after it, which is None after the last text.

    Raises `ValueError` for a placeholder that is more than a name, and for a single brace.
    """
    for text, name, form, conversion in Formatter().parse(template):
        if name is not None and (form or conversion or not name.isidentifier()):
            shown = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
            raise ValueError(f"placeholder {shown} is more than a name; a literal brace is written {{{{ or }}}}")
        yield text, name
