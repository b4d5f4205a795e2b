"""Reads which steps a judge calls wrong: strictly, in time linear in its answer, because it may write anything."""

from __future__ import annotations

import re

_LIST = re.compile(r"\[[^\[\]]*\]")
_NUMBERS = re.compile(r"\[\s*(?:[0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*\s*)?\]")
_NUMBER = re.compile(r"[0-9]+")


def wrong_steps_in(answer: str, steps: int) -> frozenset[int] | None:
    """Returns the numbers of the steps that an answer names as wrong; None if it cannot be read.

    The last text in brackets counts, such as `[2, 5]`, or `[]` for none. Anything else in these brackets, and a
    number that is not one of the steps (1 to `steps`), makes the answer unreadable.
    """
    found = _LIST.findall(answer)
    if not found or not _NUMBERS.fullmatch(found[-1]):
        return None
    numbers = frozenset(int(number) for number in _NUMBER.findall(found[-1]))
    return numbers if all(1 <= number <= steps for number in numbers) else None
