"""The sampler of neighbourhoods: true edges, at most as many as asked for, the same ones for a node in each sample."""

from __future__ import annotations

import numpy as np

from yatt_workloads.unimp.neighbourhood import NeighbourSampler, mixed

NODES = 60


def graph() -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(1)
    ends = np.unique(noise.integers(NODES, size=(900, 2)), axis=0)
    return ends[:, 1], ends[:, 0]


def edges_of(sampler: NeighbourSampler, nodes: np.ndarray, hops: int, most: int, seed: int) -> set[tuple[int, int]]:
    found = sampler.around(nodes, hops, most, seed)
    assert found.nodes[: len(nodes)].tolist() == nodes.tolist()
    assert len(np.unique(found.nodes)) == len(found.nodes)
    return set(zip(found.nodes[found.sources].tolist(), found.nodes[found.targets].tolist(), strict=True))


def test_samples_are_true_edges_and_bounded() -> None:
    sources, targets = graph()
    sampler = NeighbourSampler(sources, targets, NODES)
    true = set(zip(sources.tolist(), targets.tolist(), strict=True))
    nodes = np.array([7, 3, 40])
    one = edges_of(sampler, nodes, hops=1, most=4, seed=9)
    assert one <= true and {target for _, target in one} == {7, 3, 40}
    assert np.bincount([target for _, target in one]).max() == 4
    assert edges_of(sampler, nodes, hops=1, most=1000, seed=9) == {edge for edge in true if edge[1] in (7, 3, 40)}
    two = edges_of(sampler, nodes, hops=2, most=4, seed=9)
    assert one < two <= true and np.bincount([target for _, target in two]).max() == 4


def test_a_node_keeps_the_same_neighbours_whatever_is_sampled_with_it() -> None:
    sampler = NeighbourSampler(*graph(), NODES)
    alone = edges_of(sampler, np.array([7]), hops=2, most=4, seed=9)
    together = edges_of(sampler, np.array([3, 7, 40]), hops=2, most=4, seed=9)
    assert alone <= together
    assert edges_of(sampler, np.array([7]), hops=2, most=4, seed=10) != alone, "another seed keeps others"


def test_neighbours_are_kept_evenly() -> None:
    """Each of 20 neighbours is among the 5 that are kept in a quarter of the samples."""
    sampler = NeighbourSampler(np.arange(1, 21), np.zeros(20, np.int64), 21)
    seeds = np.random.default_rng(2).integers(2**63, size=800)
    kept = np.concatenate([sampler.around(np.array([0]), 1, 5, int(seed)).nodes[1:] for seed in seeds])
    shares = np.bincount(kept, minlength=21)[1:] / len(seeds)
    assert abs(shares - 0.25).max() < 0.07
    assert len(np.unique(mixed(np.arange(1000), 3))) == 1000
