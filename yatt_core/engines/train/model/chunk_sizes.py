"""How many tokens the head of a model works on at a time; `yatt plan` counts the same, so nothing heavy is imported."""

from __future__ import annotations

CHUNK_LOGITS = 2**22
"""Target number of logits in a chunk: 16 MiB in float32, of which a backward pass takes several."""
GPU_LOGITS = 2**28
"""Target number of logits in a chunk on a GPU, which is slow with many small products: 1 GiB in float32."""
FEWEST = 16
"""Minimum number of tokens of a chunk; products of fewer rows are slow."""


def chunk_rows(vocabulary: int, on_cores: bool) -> int:
    """Returns the number of tokens in a chunk.

    vocabulary: columns of the head's output on this rank.
    """
    return max((CHUNK_LOGITS if on_cores else GPU_LOGITS) // vocabulary, FEWEST)
