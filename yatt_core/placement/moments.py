"""When policies act."""

from __future__ import annotations

from enum import StrEnum


class Moment(StrEnum):
    """A moment at which a policy acts within an iteration."""

    WAVE = "wave"
    """A wave starts, before anything is dispatched."""
    TICK = "tick"
    """A control period has passed."""
    DRAINED = "drained"
    """The wave's last rollout has ended."""
    SWITCHED = "switched"
    """Some instances have ended their switch."""
