"""Puts figures and long texts into words for people: durations, sizes, progress, shortened errors."""

from __future__ import annotations

import re

LONGEST_WORD, LONGEST_LINE = 300, 1_000
"""Of an error, in characters: more than what we say takes, with a path in it."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def cut(text: str, characters: int) -> str:
    """A text on one line, cut behind a word where it is longer than that."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    kept = line[: characters - 1]
    return (kept.rpartition(" ")[0] or kept) + "…"


def shortened(text: str) -> str:
    """An error without the middle of what is too long to be read in it, such as a wrong value."""
    words = _LONG_WORD.sub(lambda match: _ends(match[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, characters: int) -> str:
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]}…{text[-half:]}"


def place(iteration: int, target: int) -> str:
    """How far a run has come."""
    return (
        f"iteration {iteration} of {target}"
        if iteration >= 0
        else f"before its first commit, {target} iterations to go"
    )


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
