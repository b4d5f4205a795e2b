"""How much does a checkpoint lengthen the iteration in which it begins? Measured with 20 million parameters.

Consumes nothing. Drives a session with all real components and a checkpoint every five iterations, and compares the
iterations in which a checkpoint begins with the others. The first two iterations and the last one, which is evaluated,
are excluded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from db.ledger import Ledger
from flows.launch import run_session
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import IterationSummary, SilentObserver
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
EVERY = 5
ITERATIONS = 43
UNCOUNTED = 2
PARAMETERS = (
    "model.hidden_size=512",
    "model.layers=6",
    "model.heads=8",
    "model.key_value_heads=8",
    "model.intermediate_size=1536",
)
"""20.5 million parameters."""
LAYOUT = (
    "sft=null",
    "evaluation.every=0",
    "tracking.enabled=false",
    "data.held_out=8",
    "data.prompts_per_iteration=32",
    "rollout.engine.instances=1",
    "trainer.engine.ranks=1",
    "controllers.count=1",
)


@dataclass(frozen=True, slots=True)
class Stall:
    """Median seconds of an iteration in which a checkpoint begins, of the one directly after it, and of all others."""

    with_checkpoint: float
    after_checkpoint: float
    without: float

    @property
    def share(self) -> float:
        """The time that a checkpoint adds to its iteration, as a fraction of an iteration without one."""
        return (self.with_checkpoint - self.without) / self.without


class Watcher(SilentObserver):
    """Reports the run's progress."""

    def committed(self, summary: IterationSummary) -> None:
        progress(f"iteration {summary.iteration} of {summary.target}: {summary.seconds:.2f} s")


def stall_of(seconds: Sequence[tuple[int, float]], every: int) -> Stall:
    """Computes the medians from the seconds of each iteration; the first iterations and the last one are excluded."""
    counted = [(iteration, value) for iteration, value in seconds[:-1] if iteration > UNCOUNTED]
    return Stall(
        with_checkpoint=median(value for iteration, value in counted if iteration % every == 0),
        after_checkpoint=median(value for iteration, value in counted if iteration % every == 1),
        without=median(value for iteration, value in counted if iteration % every != 0),
    )


def stall_spec(iterations: int, overrides: Sequence[str] = ()) -> RunSpec:
    """Returns the spec: the quickstart's tasks with a larger model on one trainer rank and one engine."""
    counts = (f"iterations={iterations}", f"checkpoints.every={EVERY}", "name=stall")
    return load_spec(SPEC, [*PARAMETERS, *LAYOUT, *counts, *overrides])


def measure(iterations: int = ITERATIONS, overrides: Sequence[str] = ()) -> Report:
    """Drives the run and compares its iterations."""
    load = [load_average()]
    spec = stall_spec(iterations, overrides)
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as folder:
        home = Home(Path(folder))
        run = create_run(home, spec)
        run_session(home, run, Watcher(), {})
        with Ledger.open(home.ledger) as ledger:
            seconds = ledger.metrics.history(run, "seconds/iteration")
            checkpoints = [value for _, value in ledger.metrics.history(run, "seconds/checkpoint")]
            checkpoints = [row.seconds for row in ledger.records.checkpoints(run, state=None) if row.iteration]
    stall = stall_of(seconds, EVERY)
    figures = {
        "checkpoint_stall_fraction": stall.share,
        "iteration_seconds": stall.without,
        "iteration_seconds_with_checkpoint": stall.with_checkpoint,
        "iteration_seconds_after_checkpoint": stall.after_checkpoint,
        "checkpoint_seconds": median(checkpoints),
        "publish_seconds": median(checkpoints),
    }
    details: dict[str, Any] = {"seconds": dict(seconds), "every": EVERY, "overrides": [*PARAMETERS, *LAYOUT]}
    return Report("checkpoint_stall", figures, [spec.seed], [*load, load_average()], details=details)


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of the run (default: {ITERATIONS})"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="change a value of the spec")
    arguments = parser.parse_args()
    print_report(measure(arguments.iterations, arguments.overrides), arguments.json)


if __name__ == "__main__":
    main()
