"""Formats figures and long texts for people: durations, sizes, progress, shortened errors."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from yatt_core.counting import many

if TYPE_CHECKING:
    from db.write.waits import WaitRow
    from flows.run.waiting_file import WaitingFile

LONGEST_WORD = 300
LONGEST_LINE = 1_000
"""Maximum lengths of a word and of a line in an error, in characters; YATT's own messages, with a path, are shorter."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def cut(text: str, characters: int) -> str:
    """Returns the text on one line, cut after a word if it is longer than `characters`."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    kept = line[: characters - 1]
    return (kept.rpartition(" ")[0] or kept) + "…"


def shortened(text: str) -> str:
    """Returns an error's text with overlong parts, such as an invalid value, shortened in the middle."""
    words = _LONG_WORD.sub(lambda match: _ends(match[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, characters: int) -> str:
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]}…{text[-half:]}"


def phase_name(phase: str, sft: bool) -> str:
    """Returns what a phase does, for display.

    sft: the spec has supervised fine-tuning; without it, the phase of that name only takes the first checkpoint.
    """
    if phase == "sft":
        return "supervised fine-tuning" if sft else "first checkpoint"
    return phase.replace("_", " ")


def at_the_start(sft: bool) -> str:
    """Returns when the figures of iteration 0 were measured."""
    return "after SFT" if sft else "before training"


def place(iteration: int, target: int) -> str:
    """Describes a run's progress."""
    return (
        f"iteration {iteration} of {target}"
        if iteration >= 0
        else f"before its first commit, {many(target, 'iteration')} remaining"
    )


def moment(at: int) -> str:
    """Formats a time, in milliseconds since 1970, as the local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def age(seconds: float) -> str:
    """Formats the time since something in few characters, such as 5 min or 3 d."""
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds // length))} {unit}"
    return f"{int(seconds // 86400)} d"


def duration(seconds: float) -> str:
    """Formats seconds for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def large_number(number: int) -> str:
    """Formats a large number with three significant digits, such as 7.62 B, 124 M or 99.9 k."""
    for unit, value in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= value:
            return f"{number / value:.3g} {unit}" if number < 999.5 * value else f"{number / value:,.0f} {unit}"
    return str(number)


def size(count: float) -> str:
    """Formats a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def wait_text(wait: WaitRow | WaitingFile, now: float) -> str:
    """Returns what a run waits for in one line. now: seconds since 1970."""
    left = max(0.0, wait.next_try_at / 1000 - now)
    given = "" if wait.returned_at is None else f", devices given back at {moment(wait.returned_at)}"
    return f"for {wait.dependency} since {moment(wait.since)}, next try in {left:.0f} s{given}: {wait.reason}"
