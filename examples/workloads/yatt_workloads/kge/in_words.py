"""A knowledge graph's run for people: triples by their names, ranks by relation, and Hits@k by k.

Consumes the graph, an iteration's columns, and ranks. Produces tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from yatt_core.workloads.contract import MOST_ROWS, Columns, Listing
from yatt_workloads.kge.ranking import TripleRanks
from yatt_workloads.kge.triples import KnowledgeGraph

SHOWN_TRIPLES = 20
SHOWN_NEGATIVES = 5
SHOWN_RELATIONS = 30
CUTS = (1, 2, 3, 5, 10, 20, 30, 50, 100)


def in_words(columns: Columns, graph: KnowledgeGraph, members: Sequence[tuple[str, bool]]) -> Listing:
    """Returns the first triples that each member learns from, with some of their negatives.

    members: name of each, and whether it knows relations.
    """
    names = graph.entity_names
    rows = []
    for number, (member, knows_relations) in enumerate(members):
        negatives = columns[f"{number}.negatives"]
        for place, (head, relation, tail) in enumerate(columns[f"{number}.positives"][:SHOWN_TRIPLES].tolist()):
            others = ", ".join(names[other] for other in negatives[place, :SHOWN_NEGATIVES].tolist())
            between = graph.relation_names[relation] if knows_relations else "is near"
            rows.append((member, names[head], between, names[tail], others))
    return Listing(("member", "head", "relation", "tail", "drawn as negatives"), tuple(rows[:MOST_ROWS]))


def by_relation(ranks: TripleRanks, graph: KnowledgeGraph) -> Listing:
    """Returns filtered MRR and Hits@10 of the validation split's most frequent relations, over both ends of its triples."""
    triples = graph.valid
    relations = np.concatenate([triples[:, 1], triples[:, 1]])
    numbers, counts = np.unique(triples[:, 1], return_counts=True)
    rows = []
    for place in np.argsort(-counts, kind="stable")[:SHOWN_RELATIONS]:
        found = ranks.realistic[relations == numbers[place]]
        mrr = float((1 / found).mean())
        rows.append((graph.relation_names[numbers[place]], mrr, float((found <= 10).mean())))
    return Listing(("relation", "MRR", "hits at 10"), tuple(rows))


def by_k(found: Mapping[str, TripleRanks], entities: int) -> Listing:
    """Returns the shares of ranks that are at most k, by split."""
    rows = tuple(
        (k, *(float((ranks.realistic <= k).mean()) for ranks in found.values())) for k in CUTS if k <= entities
    )
    return Listing(("k", *found), rows)
