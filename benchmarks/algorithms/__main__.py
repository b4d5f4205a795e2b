"""Does every method of the algorithm learn the quickstart's task, and does a correction repair a sampler that is forced away?

Trains `configs/quickstart.yaml` in one process, with one change each, for several seeds. The collector, sampler, rewards and
trainer are the product's own; Prefect and Ray take no part. All runs of a seed begin with the same weights.

    accuracy_warmup     held-out accuracy (n = 300, greedy) after supervised fine-tuning, mean over the seeds
    accuracy_METHOD     at the end of a method's runs, mean over the seeds
    accuracy_matched    of the base: the sampler computes as the trainer does, with its latest weights
    accuracy_corrected, accuracy_uncorrected
                        with a sampler that computes in bfloat16 and whose weights are four iterations late, with and without
                        truncated importance sampling

`--work` keeps finished runs; several processes may work on different seeds, and a last call over all seeds reports. `--docs`
writes the table and the picture of docs/algorithms.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.algorithms.cells import Cells
from benchmarks.algorithms.methods import LAG, MATCHED, METHODS
from benchmarks.algorithms.pages import write_docs
from benchmarks.common import Report, argument_parser, load_average, print_report, progress

ITERATIONS = 40

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The figures of each method's runs, in the order of the seeds."""


def report_of(runs: Runs, seeds: Sequence[int], load: Sequence[float]) -> Report:
    """Returns the report on finished runs."""
    accuracies = {name: mean(run["accuracy"] for run in found) for name, found in runs.items()}
    starts = {name: [run["accuracy_warmup"] for run in found] for name, found in runs.items()}
    warmup = mean(next(iter(starts.values())))
    figures = {"accuracy_warmup": warmup} | {f"accuracy_{name}": value for name, value in accuracies.items()}
    if MATCHED in runs:
        figures["accuracy_matched"] = accuracies[MATCHED]
    return Report(
        name="algorithms",
        figures=figures,
        seeds=seeds,
        load=load,
        baselines={f"accuracy_warmup_{name}": mean(own) for name, own in starts.items() if mean(own) != warmup},
        details={"runs": runs, "lag": LAG},
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="iterations of each run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("--work", type=Path, help="folder for finished runs: an interrupted benchmark continues there")
    parser.add_argument("--docs", type=Path, help="folder of the pages whose table and picture are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = [load_average()]
    with tempfile.TemporaryDirectory(prefix="yatt") as temporary:
        work: Path = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        cells = Cells(work.resolve(), arguments.iterations, tuple(arguments.set))
        runs = _trained(cells, arguments.methods, arguments.seeds)
    if arguments.docs is not None:
        write_docs(runs, arguments.seeds, arguments.docs)
    print_report(report_of(runs, arguments.seeds, [*load, load_average()]), arguments.json)


def _trained(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> Runs:
    runs = {name: list[dict[str, Any]]() for name in methods}
    started = time.monotonic()
    total = len(methods) * len(seeds)
    for number, (seed, name) in enumerate(product(seeds, methods), 1):
        found = cells.figures(name, seed)
        runs[name].append(found)
        left = (time.monotonic() - started) / number * (total - number) / 60
        reached = f"{found['accuracy_warmup']:.3f} -> {found['accuracy']:.3f}"
        progress(f"[{number}/{total}, {left:.0f} min left] {name}, seed {seed}: {reached}")
    return runs


if __name__ == "__main__":
    main()
