"""Divides the test files into parts that take about as long as each other, the same ones on every machine.

Pure. Consumes the names of the test files and the seconds that they have taken; produces the files of a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SECONDS = 2.0
"""What a file is taken to need that has not been measured."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Reads `2/6`. Raises `ValueError`, which says what would be right."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ValueError(f"PART: expected a part such as 2/6, or all (given: {text!r})")
        number, of = map(int, match.groups())
        if not 1 <= number <= of:
            raise ValueError(f"PART: expected a number from 1 to {of} before the slash (given: {text!r})")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def files_of(part: Part, files: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Returns the files of a part, in alphabetical order.

    seconds: what files have taken. Each file goes to the part with the least to do so far, the longest files first.
    """
    loads = [0.0] * part.of
    shares: list[list[str]] = [[] for _ in loads]
    for file in sorted(files, key=lambda file: (-seconds.get(file, SECONDS), file)):
        least = loads.index(min(loads))
        loads[least] += seconds.get(file, SECONDS)
        shares[least].append(file)
    return sorted(shares[part.number - 1])
