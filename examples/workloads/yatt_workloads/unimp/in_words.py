"""A graph's run for people: the nodes whose labels a step predicts, and accuracy by class.

Consumes the graph, an iteration's columns, and which nodes are predicted rightly. Produces tables.
"""

from __future__ import annotations

import numpy as np

from yatt_core.workloads.contract import MOST_ROWS, Array, Columns, Listing
from yatt_workloads.unimp.node_graph import SPLITS, NodeGraph

PREDICTED = "predicted"
NO_NODE = -1
SHOWN_NODES = 20
"""Of each step."""


def in_words(columns: Columns, graph: NodeGraph) -> Listing:
    """Returns the first nodes that each step predicts."""
    rows = []
    for step, row in enumerate(columns[PREDICTED]):
        for node in row[row != NO_NODE][:SHOWN_NODES].tolist():
            around = graph.labels[graph.sources[graph.targets == node]]
            same = int((around == graph.labels[node]).sum())
            rows.append((step + 1, node, f"class {graph.labels[node]}", len(around), same))
    return Listing(("step", "node", "class", "neighbours", "of the same class"), tuple(rows[:MOST_ROWS]))


def by_class(right: Array, graph: NodeGraph) -> Listing:
    """Returns the accuracy on the nodes of each class, by split; None where a split has none. right: [nodes]."""
    rows = []
    for number in range(min(graph.classes, MOST_ROWS)):
        shares = []
        for split in SPLITS[1:]:
            nodes = graph.nodes(split)
            own = right[nodes[graph.labels[nodes] == number]]
            shares.append(float(np.mean(own)) if len(own) else None)
        rows.append((f"class {number}", *shares))
    return Listing(("class", *SPLITS[1:]), tuple(rows))
