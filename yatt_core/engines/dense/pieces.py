"""The sizes by which aligned engines lay out their sums, and where they cannot; see `aligned`. Planning imports this without
torch.
"""

from __future__ import annotations

FEWEST_ROWS = 4
"""Rows of a product, at least."""
PIECE = 64
"""Slots in a piece: whole vectors of the widest processors, whose 16 lanes then add the same slots in any batch."""

QUERY_BLOCK = 128
"""Queries whose scores exist at once, of all sequences and heads; each query has its own, so the number changes no bits."""

ON_CORES_ALONE = (
    "exact: aligned holds on processors alone, because a GPU's order of sums depends on the number of rows; expected true, auto "
    "or false"
)
"""What is said of an aligned run on GPUs."""


def whole_pieces(slots: int) -> int:
    """Returns the number of slots of the pieces that hold this many slots."""
    return -(-slots // PIECE) * PIECE
