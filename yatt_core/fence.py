"""The actors' side of fencing: an actor obeys the highest epoch it has heard of and refuses every lower one."""

from __future__ import annotations

from yatt_core.errors import FencedError


class EpochFence:
    """Holds the highest epoch seen; `check` comes first in every method that has an effect."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def check(self, epoch: int) -> None:
        """Raises `FencedError` for the call of a driver that has been replaced."""
        if epoch < self.epoch:
            raise FencedError(f"epoch {epoch} was replaced by {self.epoch}")
        self.epoch = epoch
