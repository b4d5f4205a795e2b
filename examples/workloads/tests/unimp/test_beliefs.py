"""Belief propagation on a tree is exact: compared with a sum over all assignments."""

from __future__ import annotations

import itertools

import numpy as np

from yatt_workloads.unimp.beliefs import posterior

EDGES = [(0, 1), (1, 2), (1, 3)]
CHANCES = np.array([[6e-5, 1e-5], [1e-5, 4e-5]])
"""So small that edges which are not there say nothing."""


def test_on_a_tree_it_is_exact() -> None:
    noise = np.random.default_rng(1)
    features = noise.normal(size=(4, 3))
    centres = noise.normal(size=(2, 3))
    labels = np.array([0, -1, -1, -1])
    ends = sorted((target, source) for one, other in EDGES for source, target in ((one, other), (other, one)))
    found = posterior(
        features=features,
        centres=centres,
        labels=labels,
        sources=np.array([source for _, source in ends]),
        targets=np.array([target for target, _ in ends]),
        chances=CHANCES,
    )
    likelihood = np.exp(-0.5 * ((features[:, None] - centres[None]) ** 2).sum(-1))
    expected = np.zeros((4, 2))
    for classes in itertools.product(range(2), repeat=4):
        if classes[0] == 0:
            weight = np.prod([likelihood[node, kind] for node, kind in enumerate(classes)])
            weight *= np.prod([CHANCES[classes[one], classes[other]] for one, other in EDGES])
            expected[np.arange(4), list(classes)] += weight
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), atol=1e-3)
