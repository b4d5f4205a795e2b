"""Small graphs, and ranks, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.engines.train.rank_threads import in_groups
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.workload.ranks import WorkloadRanks
from yatt_core.errors import YattError
from yatt_core.workloads.contract import Draw, Metrics, Ranks, RunFacts
from yatt_workloads.kge.workload import KnowledgeGraphEmbeddings

Found = TypeVar("Found")
RING: Mapping[str, Any] = {"generated": {"entities": 12, "relations": 8}, "batch": 16, "negatives": 4}


def alone() -> Ranks:
    group = Collective()
    group.connect(0, 1, "")
    return WorkloadRanks(group)


def on_ranks(count: int, work: Callable[[Ranks], Found]) -> list[Found]:
    """Returns what each rank finds. Raises the error of the first rank that fails."""
    found: list[Found] = []
    for each in in_groups(count, lambda group: work(WorkloadRanks(group))):
        if isinstance(each, YattError):
            raise each
        found.append(each)
    return found


def begun(folder: Path, ranks: Ranks, settings: Mapping[str, Any], iterations: int = 10) -> KnowledgeGraphEmbeddings:
    workload = KnowledgeGraphEmbeddings(RunFacts(seed=5, settings=settings, iterations=iterations))
    if not any(folder.iterdir()):
        workload.build_inputs(folder)
    workload.begin(folder, ranks)
    return workload


def learnt(workload: KnowledgeGraphEmbeddings, iterations: int) -> Metrics:
    metrics: Metrics = {}
    for iteration in range(1, iterations + 1):
        draw = Draw(5, iteration, iteration - 1)
        metrics = workload.update(workload.draw(draw), draw)
    return metrics
