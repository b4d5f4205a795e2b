"""How the decoding loop lays out its rows, which determines its memory. Planning imports this without torch."""

from __future__ import annotations

MINIMUM_ROWS = 4
PREFILL_TOKENS = 16_384
REREAD_TOKENS = 64
"""Tokens of a moved response that are read at a time: each of them attends to what precedes it by itself, as a row does."""

# The widest processors' vectors hold 16 floats: masked slots after a row then add exact zeros, in the same lanes.
SLOT_MULTIPLE = 16


def rounded_slots(positions: int) -> int:
    """Returns the number of slots that attention covers for this many positions."""
    return -(-positions // SLOT_MULTIPLE) * SLOT_MULTIPLE


def padded_length(length: int) -> int:
    """Returns the padded length of a prompt: a function of the prompt's length alone, and always greater than it.

    The difference is at most a quarter, or by 8 tokens for short prompts.
    """
    step = 8
    while step * 8 <= length:
        step *= 2
    return (length // step + 1) * step


def rows_for(alive: int, invariant: bool) -> int:
    """Returns the number of rows of a decoding step.

    invariant: whether a row's bits must not depend on the others: adds a filler at the end and makes at least four
        rows.
    """
    return max(alive + 1, MINIMUM_ROWS) if invariant else alive


def blocks_of(rows: int) -> int:
    """Returns a number of rows, rounded up to whole blocks.

    Attention takes queries in blocks of a multiple of four; the remainder must have four rows, too.
    """
    return -(-rows // MINIMUM_ROWS) * MINIMUM_ROWS
