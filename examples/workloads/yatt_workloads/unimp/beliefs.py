"""What can be known at best of a stochastic block model's classes: belief propagation under the true parameters.

Consumes features, edges and the labels that are known; produces the probability of each class at each node. On sparse graphs with
few short circles it is nearly exact (arXiv 1109.3041).
"""

from __future__ import annotations

import numpy as np

from yatt_core.workloads.contract import Array

ROUNDS = 30
IMPOSSIBLE = -1e3


def posterior(
    *, features: Array, centres: Array, labels: Array, sources: Array, targets: Array, chances: Array
) -> Array:
    """Returns the probability of each class, [nodes, classes].

    features: [nodes, features], each class's centre and noise of variance 1.
    centres: [classes, features].
    labels: known classes, and -1 for the others, [nodes].
    sources, targets: ends of the edges, each in both directions, by target and source, [2 * edges].
    chances: of an edge between nodes of two classes, [classes, classes].
    """
    known = labels >= 0
    prior = -0.5 * ((features[:, None] - centres[None]) ** 2).sum(-1)
    prior[known] = IMPOSSIBLE
    prior[known, labels[known]] = 0
    prior -= prior.max(axis=1, keepdims=True)
    back = np.lexsort((targets, sources))  # the edges by source and target: at its place, each one's other direction
    messages = np.zeros((len(sources), len(chances)))
    for _ in range(ROUNDS):
        beliefs = _summed(prior, targets, messages)
        absent = -(_normalised(beliefs).sum(axis=0) @ chances)  # of all edges that are not there
        leaving = _normalised(beliefs[sources] + absent - messages[back])
        messages = np.log(leaving @ chances)
    return _normalised(_summed(prior, targets, messages))


def _summed(prior: Array, targets: Array, messages: Array) -> Array:
    found = prior.copy()
    np.add.at(found, targets, messages)
    return found


def _normalised(logarithms: Array) -> Array:
    shares = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    normalised: Array = shares / shares.sum(axis=1, keepdims=True)
    return normalised
