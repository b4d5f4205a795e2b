"""UniMP by `examples/workloads`: what labels of neighbours are worth on a generated graph whose best accuracy is known.

Trains the workload's own class in this process. The settings were chosen on graphs of other seeds; the figures are accuracies on
the test nodes after the last iteration.

    unimp_accuracy              with labels, on the whole graph
    unimp_accuracy_sampled      with labels, on sampled neighbourhoods
    unimp_accuracy_no_labels    without labels, on the whole graph
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.common import progress
from benchmarks.workloads.alone import begun, train
from benchmarks.workloads.found import Found, kept_or_measured, paired
from yatt_workloads.unimp.workload import NodeLabels

SEEDS = (1, 2, 3)
"""Seeds from 100 are those that settings were chosen on."""
ITERATIONS = 30
METHODS: Mapping[str, Mapping[str, Any]] = {
    "unimp_accuracy": {},
    "unimp_accuracy_sampled": {"sampling": {"batch": 256, "part": 128, "neighbours": 10}},
    "unimp_accuracy_no_labels": {"labels": False},
}
KNOWN_BEST = "unimp_accuracy_known_best"
PAIRS = (("unimp_accuracy", "unimp_accuracy_no_labels"), ("unimp_accuracy", "unimp_accuracy_sampled"))


def measure(work: Path, seeds: Sequence[int]) -> Found:
    """Returns the findings. work: keeps the figures of each seed."""
    runs = {seed: figures_of(work / f"unimp-{seed}", seed) for seed in seeds}
    by_name = {name: [found[name] for found in runs.values()] for name in (*METHODS, KNOWN_BEST)}
    return Found(
        figures={name: mean(by_name[name]) for name in METHODS},
        baselines={KNOWN_BEST: mean(by_name[KNOWN_BEST])},
        details={
            "runs": runs,
            "differences": {f"{one} - {other}": paired(by_name[one], by_name[other]) for one, other in PAIRS},
        },
    )


def figures_of(folder: Path, seed: int) -> dict[str, float]:
    """Returns the figures of a seed; those that the folder has are not measured again."""
    return kept_or_measured(folder / "figures.json", lambda: _measured(folder, seed))


def _measured(folder: Path, seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name, settings in METHODS.items():
        started = time.perf_counter()
        given = {"generated": {}, **settings}
        workload = begun(NodeLabels, folder / "inputs", seed=seed, iterations=ITERATIONS, **given)
        train(workload, seed, 1, ITERATIONS)
        metrics = workload.evaluate()
        found[name] = metrics["test/accuracy"]
        found[KNOWN_BEST] = metrics["test/known_best"]
        found[f"{name}_seconds"] = time.perf_counter() - started
        progress(f"seed {seed}, {name}: {found[name]:.3f}, {found[f'{name}_seconds']:.0f} s")
    return found
