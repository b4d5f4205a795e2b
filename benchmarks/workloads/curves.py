"""How the trainings of `examples/workloads` learn: one run a method, evaluated as it goes, drawn for the docs.

Consumes the settings of the subjects. Produces the held-out figure after some iterations, kept in a file a method, and
`images/SUBJECT.svg` below a folder of pages. The seed is one that settings may have been chosen on, and the split the one for
choosing; what the trainings reach is measured elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.common import progress
from benchmarks.workloads import kge, retrieval, unimp
from benchmarks.workloads.alone import begun, train
from benchmarks.workloads.found import kept_or_measured
from yatt_core.workloads.contract import RunFacts, Workload
from yatt_workloads.kge.workload import KnowledgeGraphEmbeddings
from yatt_workloads.retrieval.workload import Retrieval
from yatt_workloads.unimp.workload import NodeLabels

SEED = 0
ACCURACY = "accuracy"
Curve = Mapping[str, float]
"""The figure after each iteration that was evaluated, by its number."""


@dataclass(frozen=True)
class Drawn:
    """A subject's picture.

    iterations: of each method; every: from one evaluation to the next.
    methods: settings by name.
    figure: what is drawn, for the axis.
    """

    kind: Callable[[RunFacts], Workload]
    iterations: Mapping[str, int]
    every: int
    methods: Mapping[str, Mapping[str, Any]]
    figure: str


def subjects() -> dict[str, Drawn]:
    """Returns the pictures by the name of their subject."""
    ensemble = {"folder": str(kge.triples_of(kge.DATA)), "batch": kge.BATCH, "negatives": kge.NEGATIVES}
    members = {"Norm-OTE": kge.MEMBERS[:1], "OTE": kge.MEMBERS[2:3], "ensemble of four": kge.MEMBERS}
    with_labels = {"with labels": {}, "sampled": unimp.METHODS["unimp_accuracy_sampled"], "without": {"labels": False}}
    long = retrieval.FIRST + retrieval.CROSS + retrieval.FIRST
    return {
        "retrieval": Drawn(
            kind=Retrieval,
            iterations={"plain": retrieval.FIRST, "self": retrieval.FIRST, "cascade": long},
            every=5,
            methods={name: retrieval.METHODS[name] for name in ("plain", "self", "cascade")},
            figure="MRR@10 of the dual encoder, development queries",
        ),
        "kge": Drawn(
            kind=KnowledgeGraphEmbeddings,
            iterations=dict.fromkeys(members, kge.ITERATIONS),
            every=2,
            methods={name: {**ensemble, "members": own} for name, own in members.items()},
            figure="filtered MRR, validation split",
        ),
        "unimp": Drawn(
            kind=NodeLabels,
            iterations=dict.fromkeys(with_labels, unimp.ITERATIONS),
            every=2,
            methods={name: {"generated": {"train": 0.4, "valid": 0.3}, **own} for name, own in with_labels.items()},
            figure="accuracy, validation nodes",
        ),
    }


def draw_curves(work: Path, pages: Path, names: list[str]) -> None:
    """Trains the methods of subjects, unless their figures are kept, and draws them. work: keeps the figures."""
    torch.set_num_threads(1)
    for subject, drawn in subjects().items():
        if subject in names:
            curves = {name: curve_of(work / f"curve-{subject}", drawn, name) for name in drawn.methods}
            draw(curves, drawn.figure, pages / "images" / f"{subject}.svg")


def curve_of(folder: Path, drawn: Drawn, name: str) -> Curve:
    """Returns the figure of a method after some iterations; one that the folder has is not measured again."""
    file = folder / f"{name.replace(' ', '-')}.json"
    return kept_or_measured(file, lambda: _measured(folder, drawn, name))


def _measured(folder: Path, drawn: Drawn, name: str) -> Curve:
    iterations = drawn.iterations[name]
    inputs = folder / f"inputs-{name.replace(' ', '-')}"
    workload = begun(drawn.kind, inputs, seed=SEED, iterations=iterations, **drawn.methods[name])
    started = time.perf_counter()
    found = {"0": workload.evaluate()[ACCURACY]}
    for first in range(1, iterations + 1, drawn.every):
        last = min(first + drawn.every - 1, iterations)
        train(workload, SEED, first, last)
        found[str(last)] = workload.evaluate()[ACCURACY]
    progress(f"{name}: {found[str(iterations)]:.3f}, {time.perf_counter() - started:.0f} s")
    return found


def draw(curves: Mapping[str, Curve], figure: str, path: Path) -> None:
    """Draws curves into a file, the same bytes for the same figures."""
    picture = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = picture.subplots()
    axes.set(xlabel="iteration", ylabel=figure)
    axes.yaxis.label.set_fontsize("small")
    axes.grid(alpha=0.25)
    for name, curve in curves.items():
        axes.plot([int(iteration) for iteration in curve], list(curve.values()), marker="o", markersize=3, label=name)
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "yatt", "svg.fonttype": "none"}):
        picture.savefig(path, format="svg", metadata={"Date": None})
