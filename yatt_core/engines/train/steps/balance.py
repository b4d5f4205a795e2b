"""Distributes samples by length: over ranks, so that no rank waits for another, and into bins of limited size.

Pure and deterministic: the same lengths give the same result. Consumes lengths (integers, in any unit of
work); produces the sample indices of each rank or bin, ascending, so that writing results back to them
restores the original order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import ConfigurationError

Int64 = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.integer[Any]]

CLOSE_ENOUGH = 1e-4
"""Spread between the fullest and the emptiest rank, relative to the mean, at which refinement stops."""
SWAPS_PER_RANK = 8
"""Upper bound on the number of swaps; usually only a few are needed in total."""


def balance_equal(lengths: Lengths, ranks: int) -> list[Int64]:
    """Distributes equal counts (or counts that differ by at most one) with loads as equal as possible.

    In each round, every rank gets one of the longest remaining samples, the emptiest rank the longest one.
    Afterwards, pairs are swapped between the fullest and the emptiest rank.
    """
    work = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-work, kind="stable")
    first = order.size % ranks
    loads = np.zeros(ranks, dtype=np.int64)
    slots = np.full((-(-order.size // ranks), ranks), -1, dtype=np.int64)
    if first:
        slots[0, :first] = order[:first]
        loads[:first] = work[order[:first]]
    rounds = slots[1:] if first else slots
    for row, members in zip(rounds, order[first:].reshape(-1, ranks), strict=True):
        emptiest = np.argsort(loads, kind="stable")
        row[emptiest] = members
        loads[emptiest] += work[members]
    shares = [column[column >= 0] for column in slots.T]
    _swap_pairs(work, shares, loads)
    return [np.sort(share) for share in shares]


def pack(lengths: Lengths, capacity: int) -> list[Int64]:
    """Packs samples into few bins of limited total length: best fit, longest first (Johnson 1973).

    Raises `ConfigurationError` for a sample that is longer than the capacity.
    """
    work = np.asarray(lengths, dtype=np.int64)
    if work.size and work.max() > capacity:
        raise ConfigurationError(
            f"sample {int(work.argmax())} has {work.max()} tokens, more than the {capacity} that a micro-batch may hold"
        )
    order = np.argsort(-work, kind="stable")
    # A bin's free space and number in one integer, sorted: the first that is large enough is the best fit.
    bits = max(order.size, 1).bit_length()
    open_bins: list[int] = []
    bins: list[list[int]] = []
    for index, length in zip(order.tolist(), work[order].tolist(), strict=True):
        place = bisect_left(open_bins, length << bits)
        if place < len(open_bins):
            best = open_bins.pop(place)
            bins[best & ((1 << bits) - 1)].append(index)
        else:
            best = (capacity << bits) | len(bins)
            bins.append([index])
        insort(open_bins, best - (length << bits))
    return [np.sort(np.array(members, dtype=np.int64)) for members in bins]


def _swap_pairs(work: Int64, shares: list[Int64], loads: Int64) -> None:
    """Swaps a long sample of the fullest rank for a shorter one of the emptiest, as long as their gap narrows."""
    target = CLOSE_ENOUGH * float(loads.mean())
    for _ in range(SWAPS_PER_RANK * len(shares)):
        full = int(loads.argmax())
        empty = int(loads.argmin())
        gap = int(loads[full] - loads[empty])
        if gap <= max(target, 1.0) or not shares[empty].size:
            return
        candidates = shares[empty][np.argsort(work[shares[empty]], kind="stable")]
        # The ideal partner is shorter by half the gap; consider the nearest ones on either side of that length.
        wanted = work[shares[full]] - gap / 2
        right = np.searchsorted(work[candidates], wanted)
        partners = np.stack([np.maximum(right - 1, 0), np.minimum(right, candidates.size - 1)])
        moved = work[shares[full]][None, :] - work[candidates[partners]]
        misses = np.abs(moved - gap / 2)
        side, mine = np.unravel_index(int(misses.argmin()), misses.shape)
        gain = int(moved[side, mine])
        if not 0 < gain < gap:
            return
        position = int(np.flatnonzero(shares[empty] == candidates[partners[side, mine]])[0])
        shares[full][mine], shares[empty][position] = shares[empty][position], shares[full][mine]
        loads[full] -= gain
        loads[empty] += gain
