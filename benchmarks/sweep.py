"""Does ASHA find a setting as good as a grid's best at a fraction of its iterations, and decide the same if it is killed?

Sweeps two keys of the quickstart's spec, made smaller: a grid of 4 x 4 learning rates and sampling temperatures, all trained to
the end, and 16 trials by ASHA over the same ranges, whose settings Optuna's estimator proposes. The sweeps are the product's own;
training runs in this process instead of under Ray, from one supervised model, and the accuracy is that of 300 held-out tasks with
responses sampled at the spec's temperature. Then the sweep by ASHA is repeated in a process that is killed twice by SIGKILL.

    iterations_fraction    iterations of the sweep by ASHA, as a fraction of the grid's
    best_over_grid_best    accuracy of the winner of the sweep by ASHA, over that of the grid's best
    equal_decisions        1 if the killed sweep has the same links in its audit chain: proposals, promotions, values, winner
    kills                  kills that the sweep survived

A home that is given keeps its sweeps: a benchmark that was interrupted goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.local_runs import LocalRuns, Measure
from db.ledger import Ledger
from db.write.metrics import Metric
from flows.run.home import Home
from flows.soups.evaluation import RewardMeter
from flows.sweeps.record import PROMOTION, SWEEP, TRIAL, VALUE, WINNER, SweepRecord, create_sweep
from flows.sweeps.runner import SweepRunner
from flows.sweeps.spec import parse_sweep
from ops.sweeps.view import SweepView, sweep_view
from yatt_core.protocols.engines import Tensors
from yatt_core.spec import load_spec

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
SMALLER = (
    "iterations=64", "evaluation.every=4", "data.prompts_per_iteration=32", "trainer.engine.ranks=1",
    "rollout.engine.instances=1", "trainer.schedule.lr_warmup_iterations=2", "sft.stop_accuracy=0.2",
    "tracking.enabled=false",
)  # fmt: skip
RATE = "trainer.optimizer.learning_rate"
TEMPERATURE = "rollout.temperature"
RANGES = {
    RATE: {"low": 1e-4, "high": 1e-2, "log": True, "points": 4},
    TEMPERATURE: {"low": 0.4, "high": 1.3, "points": 4},
}
GRID = {"base": str(QUICKSTART), "space": RANGES, "sampler": "grid"}
ASHA = {"base": str(QUICKSTART), "space": RANGES, "sampler": "tpe", "asha": {"reduction": 4}, "trials": 16}
KILLED_AFTER = (5, 13)
"""Numbers of settled values after which the sweep is killed."""
POLL_SECONDS = 0.2


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="changes")
    parser.add_argument("--home", type=Path, help="a home folder that is kept; by default a temporary one")
    parser.add_argument(
        "--carry", metavar="SWEEP", help="only carry a sweep of the home on; how the process that is killed begins"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.carry is not None:
        _carry(Home(arguments.home.resolve()), arguments.carry)
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Home((arguments.home or Path(folder)).resolve())
        before = load_average()
        figures, details = _measured(home, [*SMALLER, f"seed={arguments.seed}", *arguments.changes])
    print_report(
        Report(
            name="sweep",
            figures=figures,
            seeds=[arguments.seed],
            load=[before, load_average()],
            baselines={"iterations_fraction": 1.0},
            details=details,
        ),
        arguments.json,
    )


def _measured(home: Home, changes: Sequence[str]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns figures and details."""
    grid, asha, killed = (
        _created(home, name, tree, changes) for name, tree in (("grid", GRID), ("asha", ASHA), ("killed", ASHA))
    )
    _carry(home, asha)
    kills = sum(_carried_until(home, killed, settled) for settled in KILLED_AFTER)
    _carry(home, killed)
    _carry(home, grid)
    with Ledger.open(home.ledger) as ledger:
        views = {name: sweep_view(ledger, name) for name in (grid, asha, killed)}
        equal = _decisions(ledger, asha) == _decisions(ledger, killed)
    best = views[asha].winner_value
    of_grid = views[grid].winner_value
    return {
        "iterations_fraction": views[asha].iterations / views[grid].iterations,
        "best_over_grid_best": best / of_grid if best is not None and of_grid else None,
        "equal_decisions": float(equal),
        "kills": float(kills),
        "best": best,
        "grid_best": of_grid,
    }, {name: _detail(view) for name, view in views.items()}


def _detail(view: SweepView) -> dict[str, Any]:
    return {**asdict(view), "trials": [asdict(trial) for trial in view.trials]}


def _created(home: Home, name: str, tree: Any, changes: Sequence[str]) -> str:
    """Returns a sweep with this name, which a kept home may have already."""
    spec = load_spec(QUICKSTART, [*changes, f"name={name}"])
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        known = [sweep for sweep in SWEEP.records(ledger) if sweep.startswith(f"{name}-")]
    return known[0] if known else create_sweep(home, parse_sweep(tree, "benchmarks.sweep"), spec, "benchmarks.sweep")


def _carry(home: Home, sweep: str) -> None:
    """Carries a sweep to its end."""
    with Ledger.open(home.ledger) as ledger:
        SweepRunner(
            home=home,
            ledger=ledger,
            sweep=sweep,
            drive=LocalRuns(home, ledger, _measure(home, ledger, sweep)),
            tell=progress,
        ).run()


def _measure(home: Home, ledger: Ledger, sweep: str) -> Measure:
    """Returns what measures the accuracy of weights, for all trials with the same tasks, temperature and noise."""
    meters: list[RewardMeter] = []

    def measure(weights: Tensors) -> list[Metric]:
        if not meters:  # only now does the run have its inputs
            meters.append(RewardMeter(SweepRecord.of(ledger, sweep).run_spec, sweep, home.run_folder(sweep), 1))
        return [Metric("evaluation/accuracy", meters[0].measure(weights)["exact"])]

    return measure


def _carried_until(home: Home, sweep: str, settled: int) -> bool:
    """Carries a sweep in a process of its own until values are settled, then kills it; returns whether it was killed."""
    command = [sys.executable, "-m", "benchmarks.sweep", "--home", str(home.folder), "--carry", sweep]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with Ledger.open(home.ledger) as ledger:
        while process.poll() is None and len(ledger.events.of_kind(sweep, VALUE)) < settled:
            time.sleep(POLL_SECONDS)
    process.kill()
    process.wait()
    progress(f"{sweep}: killed after {settled} values")
    return process.returncode < 0


def _decisions(ledger: Ledger, sweep: str) -> list[tuple[str, Any]]:
    kinds = (TRIAL, PROMOTION, VALUE, WINNER)
    return [(link.kind, link.body) for link in ledger.events.links(sweep) if link.kind in kinds]


if __name__ == "__main__":
    main()
