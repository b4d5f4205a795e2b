"""The moments at which policies act."""

from __future__ import annotations

from enum import StrEnum


class Moment(StrEnum):
    """A moment within an iteration at which a policy acts."""

    WAVE = "wave"
    """A wave starts; nothing has been dispatched yet."""
    TICK = "tick"
    """A control period has passed."""
    DRAINED = "drained"
    """The wave's last rollout has finished."""
    SWITCHED = "switched"
    """Some instances have completed their switch."""
