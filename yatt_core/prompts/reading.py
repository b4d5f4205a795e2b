"""How the text of a model's turn is read: what its thoughts are marked by, and how it calls tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.prompts.call_syntaxes import DEFAULT
from yatt_core.prompts.thoughts import THINK, Marks


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model's family writes.

    marks: what thoughts begin and end with.
    prefill: what the chat template writes at the beginning of the assistant's turn and belongs to its text, such as an
        opening mark of thoughts; None for texts of which that is not known, such as those that no model has written.
    syntax: the form in which calls of tools are written, one of `call_syntaxes.SYNTAXES`.
    texts: the parameters that are texts by the schemas of their tools, each as the names of tool and parameter; forms that
        write texts without quotes do not show it.
    """

    marks: Marks = THINK
    prefill: str | None = None
    syntax: str = DEFAULT
    texts: tuple[tuple[str, str], ...] = ()


UNKNOWN = Reading()
"""For texts of which no more is known than that thoughts may be in the usual marks."""


def reading_of(fields: Mapping[str, Any]) -> Reading:
    """Returns the reading with these fields, which have been JSON."""
    marks = fields["marks"]
    return Reading(
        marks=Marks(marks["begin"], marks["end"], tuple(marks["framing"])),
        prefill=fields["prefill"],
        syntax=fields["syntax"],
        texts=tuple((tool, parameter) for tool, parameter in fields["texts"]),
    )
