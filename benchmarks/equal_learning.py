"""Does a run that overlaps, lags or lets responses go on learn as much from as many samples as one that waits for everything?

Trains a small policy to write the 1 to 20 symbols that lie between two, forward or backward, in one process, with one change for
each mode. The collector, sampler, rewards, trainer and the rules of what an iteration learns from are the product's own; Prefect
and Ray take no part.
All runs of a seed begin with the same weights, after supervised fine-tuning, and learn from equal numbers of samples.

    accuracy_MODE     held-out accuracy (n = 300, greedy) at the end, mean over the seeds
    start_MODE        before the first iteration, mean over the seeds
    rise_lag0         by how much lag 0 is better at the end than at its start
    accuracy_gap_max  the largest distance of a mode's accuracy from that of lag 0
    crossing_share    share of the responses of slices that were drawn under several versions of the weights

`--work` keeps finished runs: an interrupted benchmark continues there.
"""

from __future__ import annotations

import json
import string
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.in_process import train, trained_start
from yatt_core.durable import write_file
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
ITERATIONS = 125
DRAWN = 6000
SYMBOLS = (string.ascii_lowercase + string.digits + string.ascii_uppercase)[:40]
"""So few that a policy which has seen 600 answers learns most of the others from rewards alone."""
LONGEST = 20
CORRECTED = "algorithm.importance_correction={kind: truncate, cap: 2.0}"


@dataclass(frozen=True, slots=True)
class Mode:
    """How a run overlaps. changes: of the spec. lag: iterations by which the sampler's weights are late."""

    changes: tuple[str, ...] = ()
    lag: int = 0


MODES: Mapping[str, Mode] = {
    "lag0": Mode(),
    "streamed": Mode(("asynchrony.streamed=true",)),
    "lag1": Mode(lag=1),
    "lag4": Mode(lag=4),
    "slices": Mode(("rollout.slice_tokens=4", "rollout.max_slices=4", "rollout.in_flight=64")),
    "tail": Mode(("rollout.tail={factor: 1.5, step_tokens: 4, max_iterations: 4}",)),
}
COMMON = (
    "model.tokenizer.lowercase=false",
    "rollout.engine.instances=1",
    "trainer.engine.ranks=1",
    "controllers.count=1",
    "data.prompts_per_iteration=32",
    "data.logical_shards=4",
    f"rollout.max_new_tokens={LONGEST + 2}",
    'rewards.parts=[{"name": "exact", "function": "exact_match"}]',
    "trainer.optimizer.learning_rate=3e-4",
    "sft.demonstrations=600",
    "sft.stop_accuracy=0.3",
    CORRECTED,
)


def tasks(seed: int) -> list[dict[str, str]]:
    """Returns two symbols each, and all from the first to the second; the logarithms of the numbers are uniform over 1 to 20."""
    noise = np.random.default_rng(seed)
    made: dict[str, str] = {}
    for number in np.exp(noise.uniform(0.0, np.log(LONGEST + 0.99), DRAWN)).astype(int).tolist():
        start = int(noise.integers(len(SYMBOLS) - number + 1))
        run = SYMBOLS[start : start + number][:: noise.choice((1, -1))]
        made[run[0] + run[-1]] = run
    return [{"prompt": prompt, "answer": answer} for prompt, answer in made.items()]


@dataclass(frozen=True, slots=True)
class Trained:
    """The runs in a folder, each trained once. iterations: of each run. changes: overrides of the spec of all runs."""

    folder: Path
    iterations: int
    changes: tuple[str, ...] = ()

    def figures(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the figures of a mode's run, which is trained unless it is there.

        Raises `ValueError` if the run that is there has other iterations or changes.
        """
        path = self.folder / f"{name}-{seed}.json"
        if not path.exists():
            write_file(path, json.dumps(self._trained(MODES[name], seed)).encode())
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (found["iterations"], found["changes"]) != (self.iterations, list(self.changes)):
            raise ValueError(f"{path}: a run of {found['iterations']} iterations with the changes {found['changes']}")
        return found

    def _trained(self, mode: Mode, seed: int) -> dict[str, Any]:
        model = json.dumps({"kind": "folder", "path": str(self._start(seed))})
        spec = self._spec(seed, (f"model={model}", "sft=null", *mode.changes))
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".run-") as place:
            run = train(spec, Path(place), mode.lag)
        return {
            "start": run.accuracy_sft,
            "accuracy": run.accuracy,
            "sampled": run.sampled,
            "crossed": run.crossed,
            "seconds": time.perf_counter() - started,
            "iterations": self.iterations,
            "changes": list(self.changes),
        }

    def _start(self, seed: int) -> Path:
        """Returns the folder of the model with which the runs of a seed begin."""
        folder = self.folder / f"start-{seed}"
        if not folder.exists():
            progress(f"{folder.name}: supervised fine-tuning")
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".sft-") as place:
                trained_start(self._spec(seed, ()), Path(place), folder)
        return folder

    def _spec(self, seed: int, changes: Sequence[str]) -> RunSpec:
        rows = self.folder / "tasks.jsonl"
        if not rows.exists():
            write_file(rows, "".join(json.dumps(row) + "\n" for row in tasks(0)).encode())
        source = f"data.sources={json.dumps([{'kind': 'jsonl', 'path': str(rows)}])}"
        own = (f"iterations={self.iterations}", f"seed={seed}", source)
        return load_spec(SPEC, [*COMMON, *own, *self.changes, *changes])


Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The figures of each mode's runs, in the order of the seeds."""


def report_of(runs: Runs, seeds: Sequence[int], load: Sequence[float]) -> Report:
    """Returns the report on finished runs of all modes."""
    accuracies = {name: mean(run["accuracy"] for run in found) for name, found in runs.items()}
    starts = {name: mean(run["start"] for run in found) for name, found in runs.items()}
    figures = {f"accuracy_{name}": value for name, value in accuracies.items()}
    figures |= {f"start_{name}": value for name, value in starts.items()}
    figures |= {
        "rise_lag0": accuracies["lag0"] - starts["lag0"],
        "accuracy_gap_max": max(abs(value - accuracies["lag0"]) for value in accuracies.values()),
        "crossing_share": mean(run["crossed"] for run in runs["slices"]),
    }
    return Report(name="equal_learning", figures=figures, seeds=seeds, load=load, details={"runs": runs})


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="iterations of each run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("--work", type=Path, help="folder for finished runs: an interrupted benchmark continues there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = [load_average()]
    with tempfile.TemporaryDirectory(prefix="yatt") as temporary:
        work: Path = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        trained = Trained(work.resolve(), arguments.iterations, tuple(arguments.set))
        runs = _all_of(trained, arguments.seeds)
    print_report(report_of(runs, arguments.seeds, [*load, load_average()]), arguments.json)


def _all_of(trained: Trained, seeds: Sequence[int]) -> Runs:
    runs = {name: list[dict[str, Any]]() for name in MODES}
    for seed, name in product(seeds, MODES):
        found = trained.figures(name, seed)
        runs[name].append(found)
        progress(f"{name}, seed {seed}: {found['start']:.3f} -> {found['accuracy']:.3f} in {found['seconds']:.0f} s")
    return runs


if __name__ == "__main__":
    main()
