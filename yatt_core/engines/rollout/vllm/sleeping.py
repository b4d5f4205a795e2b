"""What of a vLLM engine sleeps: a state machine without an engine, which says what has to be asked of it.

vLLM gives memory back all at once and takes it back part by part; a part that is awake must not be woken, and an engine of
which a part is awake cannot be put to sleep.
"""

from __future__ import annotations

from typing import Literal

Part = Literal["weights", "kv_cache"]
PARTS: tuple[Part, ...] = ("weights", "kv_cache")


class Sleep:
    """All of an engine is awake at first."""

    def __init__(self) -> None:
        self._asleep: tuple[Part, ...] = ()

    def wake(self, *parts: Part) -> tuple[Part, ...]:
        """Which of the parts have to be woken; they are awake from here on."""
        due = tuple(part for part in parts if part in self._asleep)
        self._asleep = tuple(part for part in self._asleep if part not in due)
        return due

    def lie_down(self) -> tuple[tuple[Part, ...], bool]:
        """Before all of it can sleep: which parts have to be woken, and whether there is anything to put to sleep then."""
        if self._asleep == PARTS:
            return (), False
        due, self._asleep = self._asleep, PARTS
        return due, True
