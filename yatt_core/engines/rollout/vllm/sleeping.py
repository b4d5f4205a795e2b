"""Which parts of a vLLM engine sleep: a state machine without an engine, which returns the calls to make.

vLLM frees memory all at once and restores it part by part. A part that is awake must not be woken, and a
partly awake engine cannot be put to sleep.
"""

from __future__ import annotations

from typing import Literal

Part = Literal["weights", "kv_cache"]
PARTS: tuple[Part, ...] = ("weights", "kv_cache")


class Sleep:
    """The state of an engine; all of it is awake at first."""

    def __init__(self) -> None:
        self._asleep: tuple[Part, ...] = ()

    def wake(self, *parts: Part) -> tuple[Part, ...]:
        """Returns the parts that have to be woken; they count as awake from here on."""
        due = tuple(part for part in parts if part in self._asleep)
        self._asleep = tuple(part for part in self._asleep if part not in due)
        return due

    def lie_down(self) -> tuple[tuple[Part, ...], bool]:
        """Prepares for sleep: returns the parts to wake first, and whether there is anything to put to sleep."""
        if self._asleep == PARTS:
            return (), False
        due = self._asleep
        self._asleep = PARTS
        return due, True
