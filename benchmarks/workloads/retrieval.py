"""Retrieval by `examples/workloads`: what distillation on the fly, the cascade and its control reach on a generated task.

Trains the workload's own class in this process. `self` is also the first stage of the cascade and of its control, which go on
from its state. The test queries' MRR@10 is that of the last iteration; nothing is chosen by them.

    retrieval_mrr_plain     the dual encoder alone
    retrieval_mrr_self      with its own late interaction as its teacher
    retrieval_mrr_cascade   with a cross-encoder that has grown out of self's late interaction as a further teacher
    retrieval_mrr_frozen    with a copy of self's late interaction instead: as many steps, the same weights of the losses
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.common import progress
from benchmarks.workloads.alone import begun, keep_state, kept_state, train
from benchmarks.workloads.found import Found, paired
from yatt_workloads.retrieval.workload import Retrieval

SEEDS = (1, 2, 3)
"""No setting was chosen on these."""
FIRST = 40
CROSS = 15
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "self": {"method": "self"},
    "cascade": {"method": "cascade", "first": FIRST, "cross": CROSS},
    "frozen": {"method": "frozen", "first": FIRST},
}
PAIRS = (("self", "plain"), ("cascade", "self"), ("cascade", "frozen"), ("frozen", "self"))
MRR = "test/mrr_at_10"


def measure(work: Path, seeds: Sequence[int]) -> Found:
    """Returns the findings. work: keeps the figures of a seed's methods; several processes may share it."""
    runs = {seed: figures_of(work / f"retrieval-{seed}", seed) for seed in seeds}
    by_method = {method: [found[method][MRR] for found in runs.values()] for method in METHODS}
    late = {method: [found[method]["test/late_mrr_at_10"] for found in runs.values()] for method in ("self", "cascade")}
    return Found(
        figures={f"retrieval_mrr_{method}": mean(values) for method, values in by_method.items()},
        baselines={f"retrieval_mrr_{method}_late": mean(values) for method, values in late.items()},
        details={
            "runs": runs,
            "differences": {f"{one} - {other}": paired(by_method[one], by_method[other]) for one, other in PAIRS},
        },
    )


def figures_of(folder: Path, seed: int) -> dict[str, Any]:
    """Returns each method's figures of a seed; those that the folder has are not trained again."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    inputs = folder / "inputs"
    found: dict[str, Any] = {}
    first_stage = folder / "self"
    for method, settings in METHODS.items():
        kept_figures = folder / f"{method}.json"
        if kept_figures.exists():
            found[method] = json.loads(kept_figures.read_text())
            continue
        started = time.perf_counter()
        before = settings.get("first", 0)
        iterations = FIRST + before + settings.get("cross", 0)
        workload = begun(Retrieval, inputs, seed=seed, iterations=iterations, **settings)
        if before:
            state = kept_state(first_stage)
            assert state is not None, "self was trained before what goes on from it"
            workload.load(state)
        train(workload, seed, before + 1, iterations)
        if method == "self":
            keep_state(workload.state(), first_stage)
        found[method] = {**workload.evaluate(), "seconds": time.perf_counter() - started}
        kept_figures.write_text(json.dumps(found[method]))
        progress(f"seed {seed}, {method}: {found[method][MRR]:.3f}, {found[method]['seconds']:.0f} s")
    return found
