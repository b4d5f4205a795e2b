"""Finds the most similar of some prompts, by the character sequences that they share.

Consumes texts; produces similarities between 0 and 1. A text is the counts of its sequences of `LENGTH` bytes, hashed into
`BUCKETS`; a sequence that many of the texts contain counts less (tf-idf), so that a common template hardly matters. The
similarity is the cosine of two such vectors. Nothing here needs a model, and the result is a function of the texts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LENGTH = 4
BUCKETS = 2048
CHARACTERS = 4_000
"""Only the beginning of a text, this long, is compared."""
ALIKE = 0.2
"""Prompts that are less similar are not considered to be alike."""
MULTIPLIER = np.uint32(2_654_435_761)
Float32 = npt.NDArray[np.float32]


def nearest(texts: Sequence[str], candidates: Sequence[str]) -> list[tuple[int, float] | None]:
    """Returns for each text the index of the most similar candidate and their similarity; of equal ones, the first.

    None if no candidate is at least `ALIKE`.
    """
    if not texts or not candidates:
        return [None] * len(texts)
    left, right = (np.stack([_counts(text) for text in group]) for group in (texts, candidates))
    present = np.count_nonzero(left, axis=0) + np.count_nonzero(right, axis=0)
    weights = np.log((1 + len(left) + len(right)) / (1 + present)).astype(np.float32) + np.float32(1)
    similar = _scaled(left, weights) @ _scaled(right, weights).T
    best = similar.argmax(axis=1)
    found = zip(best.tolist(), similar.max(axis=1).tolist(), strict=True)
    return [(at, min(1.0, value)) if value >= ALIKE else None for at, value in found]


def _counts(text: str) -> Float32:
    data = np.frombuffer(text[:CHARACTERS].encode("utf-8", "surrogatepass").ljust(LENGTH, b"\0"), np.uint8)
    words = sum(data[at : len(data) - LENGTH + 1 + at].astype(np.uint32) << np.uint32(8 * at) for at in range(LENGTH))
    hashed = (np.asarray(words, np.uint32) * MULTIPLIER) >> np.uint32(32 - BUCKETS.bit_length() + 1)
    return np.bincount(hashed, minlength=BUCKETS).astype(np.float32)


def _scaled(counts: Float32, weights: Float32) -> Float32:
    weighted = np.log1p(counts) * weights
    lengths = np.linalg.norm(weighted, axis=1, keepdims=True)
    scaled: Float32 = weighted / np.maximum(lengths, np.float32(1e-12))
    return scaled
