"""How soups and preferences are called. Consumes plain values; produces words."""

from __future__ import annotations

from collections.abc import Sequence

SOUP_NAMES = {"soup": "Bone Soup", "rewarded_soup": "Rewarded Soup"}
"""What people call the two soups."""


def preference_text(preference: Sequence[float]) -> str:
    """Returns a preference as people type it."""
    return ",".join(f"{weight:.3g}" for weight in preference)
