"""How the decoding loop lays out its rows: what its memory follows from. Pure numbers, so that a plan needs no torch."""

from __future__ import annotations

MINIMUM_ROWS = 4
PREFILL_TOKENS = 16_384

# Vectors of the widest processors hold 16 floats: masked slots behind a row then add exact zeros, in the same lanes.
SLOT_MULTIPLE = 16


def rounded_slots(positions: int) -> int:
    """Slots that attention runs over for so many positions."""
    return -(-positions // SLOT_MULTIPLE) * SLOT_MULTIPLE


def padded_length(length: int) -> int:
    """The length that a prompt is prefilled at: longer than itself, by its own length alone, at most a quarter over."""
    step = 8
    while step * 8 <= length:
        step *= 2
    return (length // step + 1) * step


def rows_for(alive: int, invariant: bool) -> int:
    """Rows of a decoding step. invariant: with one filler at the end, and four at the least, for the sake of the bits."""
    return max(alive + 1, MINIMUM_ROWS) if invariant else alive
