"""Splits what a model wrote into its thoughts and its final text: pure functions of text, in linear time.

Consumes a text and the marks of thoughts. Produces thoughts and final text. A closing mark without an opening one ends
thoughts that began in the prompt, where many chat templates put the opening mark. Thoughts that do not end leave no
final text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """What thoughts begin and end with."""

    begin: str = "<think>"
    end: str = "</think>"


THINK = Marks()
"""The marks of most models that think."""


@dataclass(frozen=True, slots=True)
class Split:
    """A text without the marks of thoughts.

    thoughts: the thoughts, without white space around them; empty if there are none.
    final: the rest of the text, as it was written; empty if the thoughts do not end.
    """

    thoughts: str
    final: str


def split_thoughts(text: str, marks: Marks = THINK) -> Split:
    """Returns the thoughts and the final text of a turn."""
    if marks.begin not in text and marks.end not in text:
        return Split("", text)
    thoughts = list[str]()
    final = list[str]()
    inside = False
    start = 0
    for mark in re.finditer(f"{re.escape(marks.begin)}|{re.escape(marks.end)}", text):
        piece = text[start : mark.start()]
        start = mark.end()
        if mark[0] == marks.begin:
            (thoughts if inside else final).append(piece)
            inside = True
            continue
        if not inside:  # everything before it was thought: the prompt had the opening mark
            thoughts.extend(final)
            final.clear()
        thoughts.append(piece)
        inside = False
    (thoughts if inside else final).append(text[start:])
    kept = "" if inside else "".join(final)
    return Split("\n".join(piece.strip() for piece in thoughts if piece.strip()), kept)


def final_spans(text: str, marks: Marks = THINK) -> tuple[tuple[int, int], ...]:
    """Returns where in a turn its final text is, as offsets [start, stop) of pieces that together are that text."""
    spans = list[tuple[int, int]]()
    inside = False
    start = 0
    for mark in re.finditer(f"{re.escape(marks.begin)}|{re.escape(marks.end)}", text):
        if not inside and mark[0] == marks.begin:
            spans.append((start, mark.start()))
        elif not inside:
            spans.clear()
        start = mark.end()
        inside = mark[0] == marks.begin
    if inside:
        return ()
    return tuple((begin, end) for begin, end in (*spans, (start, len(text))) if end > begin)
