"""Knowledge graphs by `examples/workloads`: what NOTE's models and their ensemble reach on Kinships, beside PyKEEN.

Trains the workload's own class in this process. The triples are those of PyKEEN's wheel in `build/peers`, where PyKEEN's own
RotatE is trained too. No setting was chosen on the seeds that are measured; the figures are filtered MRR on the test split.

    kge_mrr_ote, kge_mrr_note    a member alone, OTE and Norm-OTE
    kge_mrr_ensemble             all members together: two of Norm-OTE, OTE and QuatE
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks import peer_environment
from benchmarks.common import progress
from benchmarks.workloads.alone import OneRank, begun, train
from benchmarks.workloads.found import Found, kept_or_measured, paired
from ops import bootstrap
from yatt_workloads.kge.ranking import Queries, TripleRanks, TrueAnswers, ranks_of
from yatt_workloads.kge.triples import read_graph
from yatt_workloads.kge.workload import KnowledgeGraphEmbeddings

SEEDS = (1, 2, 3)
"""No setting was chosen on these; seed 0 is there for choosing, by the validation split."""
DATA = "kinships"
PROGRAM = Path(__file__).parent / "pykeen_answers.py"
ITERATIONS = 24
MEMBERS: tuple[Mapping[str, Any], ...] = (
    {"model": "note"},
    {"model": "note"},
    {"model": "ote"},
    {"model": "quate", "margin": 0},
)
ROTATE: Mapping[str, Any] = {"width": 64, "margin": 6.0, "rate": 0.01}
ROTATE_ITERATIONS = 20
BATCH = 256
NEGATIVES = 32
VALUES = 100
"""How many different scores the two evaluations are compared on: so few that most triples have ties."""


def measure(work: Path, seeds: Sequence[int]) -> Found:
    """Returns the findings. work: keeps the figures of each seed."""
    peer_environment.make()
    runs = {seed: figures_of(work / f"kge-{seed}", seed) for seed in seeds}
    by_name = {name: [found[name] for found in runs.values()] for name in runs[seeds[0]]}
    means = {name: mean(values) for name, values in by_name.items()}
    own = ("ote", "note", "ensemble", "rotate")
    pairs = (("note", "ote"), ("ensemble", "best_member"), ("rotate", "rotate_pykeen"))
    return Found(
        figures={f"kge_mrr_{name}": means[name] for name in own},
        baselines={f"kge_mrr_{name}": value for name, value in means.items() if name not in (*own, "seconds")},
        details={
            "runs": runs,
            "differences": {f"{one} - {other}": paired(by_name[one], by_name[other]) for one, other in pairs},
        },
    )


def triples_of(name: str) -> Path:
    """Returns the folder of a data set in PyKEEN's wheel. Raises `RuntimeError` if it is not there."""
    found = sorted(bootstrap.PEERS.glob(f"lib/python*/site-packages/pykeen/datasets/{name}"))
    if not found:
        raise RuntimeError(f"{bootstrap.PEERS} has no data set {name} of PyKEEN; run make peers")
    return found[0]


def figures_of(folder: Path, seed: int) -> dict[str, float]:
    """Returns the figures of a seed; those that the folder has are not measured again."""
    return kept_or_measured(folder / "figures.json", lambda: _measured(folder, seed))


def _measured(folder: Path, seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    started = time.perf_counter()
    figures = {**ensemble(folder / "ensemble", seed), **rotate(folder / "rotate", seed)}
    figures["seconds"] = time.perf_counter() - started
    progress(f"seed {seed}: {figures}")
    return figures


def ensemble(inputs: Path, seed: int) -> dict[str, float]:
    """Returns the MRR of NOTE's ensemble, of its members, and of the best of them."""
    given = {"folder": str(triples_of(DATA)), "members": MEMBERS, "batch": BATCH, "negatives": NEGATIVES}
    workload = begun(KnowledgeGraphEmbeddings, inputs, seed=seed, iterations=ITERATIONS, **given)
    train(workload, seed, 1, ITERATIONS)
    found = workload.evaluate()
    alone = [found[f"test/mrr_{number}.{member['model']}"] for number, member in enumerate(MEMBERS)]
    return {
        "note": alone[0],
        "ote": alone[2],
        "quate": alone[3],
        "best_member": max(alone),
        "ensemble": found["test/mrr"],
    }


def rotate(inputs: Path, seed: int) -> dict[str, float]:
    """Returns RotatE's MRR, ours and PyKEEN's, and how far the two evaluations of the same scores differ."""
    given = {"folder": str(triples_of(DATA)), "members": ({"model": "rotate", **ROTATE},)}
    workload = begun(
        KnowledgeGraphEmbeddings,
        inputs,
        seed=seed,
        iterations=ROTATE_ITERATIONS,
        batch=BATCH,
        negatives=NEGATIVES,
        **given,
    )
    train(workload, seed, 1, ROTATE_ITERATIONS)
    training = {**ROTATE, "epochs": ROTATE_ITERATIONS, "batch": BATCH, "negatives": NEGATIVES, "seed": seed}
    with tempfile.TemporaryDirectory() as scratch:
        theirs = peer_environment.answer_of(PROGRAM, {"data": DATA, "training": training}, Path(scratch))
    return {
        "rotate": workload.evaluate()["test/mrr"],
        "rotate_pykeen": theirs["realistic"],
        "difference_pykeen": largest_difference(inputs, DATA, seed),
    }


def largest_difference(inputs: Path, data: str, seed: int) -> float:
    """Returns how far our filtered MRR of random scores with ties differs at most from PyKEEN's, over the three kinds of ranks.

    inputs: of a run on the data set.
    """
    ours, scores = of_random_scores(inputs, seed)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scores.npz"
        np.savez(path, **scores)
        theirs = peer_environment.answer_of(PROGRAM, {"data": data, "scores": str(path)}, Path(scratch))
    differences = [abs(value - float(theirs[kind])) for kind, value in ours.items()]
    return max(differences)


def of_random_scores(inputs: Path, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns our filtered MRR of random scores by the kind of ranks, and the scores as PyKEEN's program expects them."""
    graph = read_graph(inputs)
    noise = np.random.default_rng(seed)
    answers = TrueAnswers(graph.known, graph.relations)
    scores: dict[str, Any] = {}
    parts: list[TripleRanks] = []
    for side, inverse in (("tails", False), ("heads", True)):
        queries = Queries.of(graph.test, inverse)
        rows: dict[tuple[int, int], Any] = {}  # a query has the same scores wherever it stands
        pairs = zip(queries.known.tolist(), queries.relation.tolist(), strict=True)
        drawn = [rows.setdefault(pair, noise.integers(VALUES, size=graph.entities) / VALUES) for pair in pairs]
        scores[side] = np.stack(drawn)
        given = torch.from_numpy(scores[side])
        span = range(graph.entities)
        parts.append(ranks_of(scores=given, span=span, queries=queries, answers=answers, ranks=OneRank()))
    found = TripleRanks.together(parts).metrics()
    ours = {"realistic": found["mrr"], "optimistic": found["mrr_optimistic"], "pessimistic": found["mrr_pessimistic"]}
    for kind in ("entities", "relations"):
        scores[kind] = np.array((inputs / f"{kind}.txt").read_text(encoding="utf-8").split("\n")[:-1])
    return ours, {**scores, "triples": graph.test}
