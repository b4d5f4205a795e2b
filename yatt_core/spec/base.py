"""The base of all sections of a spec, and a bound that several of them share."""

from __future__ import annotations

from yatt_core.section import KIND, SpecModel

__all__ = ["KIND", "LONGEST_CALL_SECONDS", "SpecModel"]

LONGEST_CALL_SECONDS = 86_400.0
"""One day: the maximum time limit of a call of a user's function. The system's timers do not accept arbitrarily
large numbers."""
