"""Small graphs for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.workloads.tests.kge.support import alone
from yatt_core.workloads.contract import Ranks, RunFacts
from yatt_workloads.unimp.workload import NodeLabels

BLOCKS: Mapping[str, Any] = {
    "generated": {"nodes": 120, "classes": 3, "within": 8, "across": 2},
    "width": 8,
    "steps": 2,
}


def begun(folder: Path, settings: Mapping[str, Any], ranks: Ranks | None = None, iterations: int = 10) -> NodeLabels:
    workload = NodeLabels(RunFacts(seed=5, settings=settings, iterations=iterations))
    if not any(folder.iterdir()):
        workload.build_inputs(folder)
    workload.begin(folder, ranks or alone())
    return workload
