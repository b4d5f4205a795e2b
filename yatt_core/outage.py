"""How long to wait before a dependency that is away is tried again: pure functions of the number of tries.

Consumes the number of tries and a random number. Produces a pause that doubles up to a bound, with jitter, so that runs which
wait for the same thing do not come back at once.
"""

from __future__ import annotations

FIRST_SECONDS = 2.0
LONGEST_SECONDS = 10.0
LONGEST_NEAR_SECONDS = 3.0
"""Longest pause between two looks at the run's own cluster, which ask nobody outside of it."""
LONGEST_BLIND_SECONDS = 60.0
"""Longest pause before a try that takes the devices, because nothing less can tell whether the dependency is back."""
JITTER = 0.25
"""Largest fraction by which a pause is longer or shorter."""


def pause_before(tries: int, chance: float, longest: float = LONGEST_SECONDS) -> float:
    """Returns the seconds before the next try.

    tries: number of tries so far.
    chance: a number in [0, 1).
    longest: the bound, before jitter.
    """
    usual = min(FIRST_SECONDS * 2.0 ** min(tries, 60), longest)
    return usual * (1.0 + JITTER * (2.0 * chance - 1.0))
