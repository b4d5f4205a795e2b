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
    """What thoughts begin and end with.

    framing: what may stand before the final text, in this order, and is not part of it.
    """

    begin: str = "<think>"
    end: str = "</think>"
    framing: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """All marks: they survive decoding, although some are special tokens."""
        return (self.begin, self.end, *self.framing)

    def framing_end(self, text: str, place: int) -> int:
        """Returns the place behind what may stand before a final text, if it stands at a place of a text."""
        for frame in self.framing:
            if text.startswith(frame, place):
                place += len(frame)
        return place


THINK = Marks()
"""The marks of most models that think."""
HARMONY = Marks("<|channel|>analysis<|message|>", "<|end|>", ("<|start|>assistant", "<|channel|>final<|message|>"))
"""The channels of gpt-oss."""
FAMILIES = (
    HARMONY,
    Marks("<|channel>thought", "<channel|>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    THINK,
)
"""The marks of families of models: of gpt-oss, Gemma 4, Magistral, Seed-OSS, Command A, and of most others."""


def marks_of_template(template: str) -> Marks:
    """Returns the marks that a chat template writes; those of most models if it writes none."""
    return next((marks for marks in FAMILIES if marks.begin in template), THINK)


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
    thoughts, final = _spans(text, marks)
    pieces = [text[begin:end].strip() for begin, end in thoughts]
    return Split("\n".join(filter(None, pieces)), "".join(text[begin:end] for begin, end in final))


def final_spans(text: str, marks: Marks = THINK) -> tuple[tuple[int, int], ...]:
    """Returns where in a turn its final text is, as offsets [start, stop) of pieces that together are that text."""
    return tuple(_spans(text, marks)[1])


def _spans(text: str, marks: Marks) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns where a turn's thoughts and its final text are, as offsets [start, stop), in order."""
    thoughts = list[tuple[int, int]]()
    final = list[tuple[int, int]]()
    inside = False
    start = 0
    for mark in re.finditer(f"{re.escape(marks.begin)}|{re.escape(marks.end)}", text):
        piece = (start, mark.start())
        start = mark.end()
        if mark[0] == marks.begin:
            (thoughts if inside else final).append(piece)
            inside = True
            continue
        if not inside:  # everything before it was thought: the prompt had the opening mark
            thoughts += final
            final = []
        thoughts.append(piece)
        inside = False
    if inside:
        return [*thoughts, (start, len(text))], []
    final.append((marks.framing_end(text, start), len(text)))
    return thoughts, [(begin, end) for begin, end in final if end > begin]
