"""Samples the neighbourhoods of nodes, in numpy.

Consumes a graph's edges, nodes and a seed; produces a subgraph that begins with these nodes. Which neighbours a node keeps
depends on the seed and its own edges alone, by a hash: it keeps the same ones whichever other nodes are sampled with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from yatt_core.workloads.contract import Array


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A subgraph.

    nodes: their numbers in the whole graph, those that were asked for first.
    sources, targets: ends of its edges, as places in `nodes`.
    """

    nodes: Array
    sources: Array
    targets: Array


class NeighbourSampler:
    """Samples from one graph.

    targets: sorted; sources: [edges].
    """

    def __init__(self, sources: Array, targets: Array, nodes: int) -> None:
        self._sources = sources
        self._counts = np.bincount(targets, minlength=nodes)
        self._starts = np.cumsum(self._counts) - self._counts

    def around(self, nodes: Array, hops: int, most: int, seed: int) -> Neighbourhood:
        """Returns what `hops` layers see from nodes, [nodes], each of which keeps at most `most` neighbours."""
        found = nodes
        front = nodes
        edges: list[Array] = []
        for _ in range(hops):
            edges.append(self._kept(front, most, seed))
            front = np.setdiff1d(self._sources[edges[-1]], found)
            found = np.concatenate([found, front])
        kept = np.concatenate(edges)
        order = np.argsort(found)
        target = np.searchsorted(self._starts, kept, side="right") - 1
        places = [order[np.searchsorted(found, ends, sorter=order)] for ends in (self._sources[kept], target)]
        return Neighbourhood(found, *places)

    def _kept(self, front: Array, most: int, seed: int) -> Array:
        """Returns numbers of edges: those of each node of the front with the smallest hashes."""
        counts = self._counts[front]
        owner = np.repeat(np.arange(len(front)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = np.repeat(self._starts[front], counts) + within
        order = np.lexsort((mixed(edges, seed), owner))
        kept: Array = edges[order[within < most]]
        return kept


def mixed(numbers: Array, seed: int) -> Array:
    """Returns 64 well-mixed bits for each number and a seed of 64 bits (SplitMix64, Steele et al. 2014)."""
    bits = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
