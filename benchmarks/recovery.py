"""How much of its time does a run with frequent faults spend on training, and what does its safety cost?

Consumes nothing, or a report of `make chaos`. Drives runs through the product's own loop, ledger and recovery on
simulated time, and compares them with runs that recover from the same faults with checkpoints alone, each at its own
best checkpoint interval. Also measures real commits and the stall of real checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import checkpoint_stall, commit
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.simulation import checkpoint_only
from benchmarks.simulation.drive import DEVICES, ENGINES, RANKS, SHARDS, Driven, drive
from benchmarks.simulation.trace import Durations, Trace, draw_trace

RUNS = 4
FAULTS_A_RUN = 125
ITERATIONS_A_FAULT = 10
INTERVALS = (2, 3, 4, 5)
INTERVALS_CHECKPOINT_ONLY = tuple(range(1, 11))
PARTS = ("simulation", "commit", "stall")
CHAOS_FIGURES = ("recover_warm_p50_s", "recover_warm_p95_s", "recover_cold_max_s")


def ettr(traces: Sequence[Trace], walls: Sequence[float]) -> float:
    """Returns the effective training time ratio of several runs: their undisturbed time divided by their actual
    time.
    """
    return sum(trace.iterations * trace.durations.iteration for trace in traces) / sum(walls)


def best_checkpoint_only(traces: Sequence[Trace]) -> tuple[int, dict[int, float]]:
    """Returns the interval that is best over all runs with checkpoints alone, and the ETTR of every interval tried."""
    tried = {
        every: ettr(traces, [checkpoint_only.wall_seconds(trace, every) for trace in traces])
        for every in INTERVALS_CHECKPOINT_ONLY
    }
    return max(tried, key=tried.__getitem__), tried


@dataclass(frozen=True, slots=True)
class Simulated:
    """All runs at the interval that is best for the first run, and the first run's ETTR at every interval tried.

    same_digest: the first run ends with the weights of an undisturbed run.
    """

    runs: tuple[Driven, ...]
    interval: int
    tried: Mapping[int, float]
    same_digest: bool


def simulate(traces: Sequence[Trace], workers: int) -> Simulated:
    """Drives the runs in parallel."""
    # Separate processes: each runs one driver after another, and a driver's patches and clock belong to its process.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_quiet) as pool:
        undisturbed = pool.submit(drive, replace(traces[0], faults={}), traces[0].iterations)
        candidates = dict(zip(INTERVALS, pool.map(partial(drive, traces[0]), INTERVALS), strict=True))
        tried = {every: ettr(traces[:1], [driven.wall_seconds]) for every, driven in candidates.items()}
        best = max(tried, key=tried.__getitem__)
        progress(f"best interval {best}: {tried}")
        others = list(pool.map(partial(drive, every=best), traces[1:]))
        digest = undisturbed.result().weights_digest
    return Simulated((candidates[best], *others), best, tried, candidates[best].weights_digest == digest)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def figures_of_simulation(seed: int, runs: int, faults: int, workers: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the figures and the data behind them."""
    traces = [draw_trace(faults, ITERATIONS_A_FAULT, seed + number, Durations()) for number in range(runs)]
    progress(f"{runs} simulated runs of {traces[0].iterations} iterations, {faults} faults each")
    simulated = simulate(traces, workers)
    best_alone, tried_alone = best_checkpoint_only(traces)
    own = ettr(traces, [run.wall_seconds for run in simulated.runs])
    alone = tried_alone[best_alone]
    figures = {
        "ettr": own,
        "ettr_checkpoint_only": alone,
        "ettr_gain": own - alone,
        "faults_simulated": float(sum(run.struck for run in simulated.runs)),
        "checkpoint_interval": float(simulated.interval),
        "checkpoint_interval_checkpoint_only": float(best_alone),
    }
    details = {
        "inputs": {
            "durations": asdict(traces[0].durations),
            "iterations": sum(trace.iterations for trace in traces),
            "devices": DEVICES,
            "engines": ENGINES,
            "trainer_ranks": RANKS,
            "logical_shards": SHARDS,
        },
        "ettr_by_interval": simulated.tried,
        "ettr_checkpoint_only_by_interval": tried_alone,
        "drivers": [run.drivers for run in simulated.runs],
        "digest_as_undisturbed": simulated.same_digest,
        "ettr_by_accounts": [run.accounts.ettr for run in simulated.runs],
        "buckets": [run.accounts.buckets for run in simulated.runs],
        "advice": [asdict(run.advice) for run in simulated.runs],
    }
    return figures, details


def chaos_figures(path: Path) -> Mapping[str, Any]:
    """Reads from a report of `make chaos` the restart times that it measured."""
    report = json.loads(path.read_text(encoding="utf-8"))
    figures = report.get("figures", report)
    return {name: figures[name] for name in CHAOS_FIGURES if name in figures}


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: everything)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run's faults")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"simulated runs (default: {RUNS})")
    parser.add_argument("--faults", type=int, default=FAULTS_A_RUN, help=f"faults per run (default: {FAULTS_A_RUN})")
    parser.add_argument("--chaos", type=Path, help="a report of `make chaos`, whose restart times are printed too")
    arguments = parser.parse_args()
    load = [load_average()]
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    if "simulation" in arguments.parts:
        workers = len(os.sched_getaffinity(0))
        found = figures_of_simulation(arguments.seed, arguments.runs, arguments.faults, workers)
        figures = {**figures, **found[0]}
        details = {**details, **found[1]}
    if "commit" in arguments.parts:
        progress("commits of the ledger")
        measured = commit.measure()
        names = ("commit_ratio", "commit_ratio_after_10000", "database_mb_after_10000")
        figures |= {name: measured[name] for name in names}
    if "stall" in arguments.parts:
        progress("the stall of checkpoints")
        measured_stall = checkpoint_stall.measure()
        figures["checkpoint_stall_fraction"] = measured_stall.figures["checkpoint_stall_fraction"]
        details["stall"] = measured_stall.details
    baselines = {} if arguments.chaos is None else {"chaos": chaos_figures(arguments.chaos)}
    seeds = [arguments.seed + number for number in range(arguments.runs)]
    print_report(
        Report(
            name="recovery",
            figures=figures,
            seeds=seeds,
            load=[*load, load_average()],
            baselines=baselines,
            details=details,
        ),
        arguments.json,
    )


if __name__ == "__main__":
    main()
