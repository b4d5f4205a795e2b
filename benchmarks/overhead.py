"""What does an iteration cost beside the engines' own work: time of the orchestration, and bytes that ranks read in vain?

Consumes configs/quickstart.yaml and configs/virtual.yaml. Trains some iterations of the quickstart, and of a run whose
virtual engines take about 60 virtual seconds an iteration. An iteration's overhead is its wall time less its longest chain
of engine compute: the busiest instance in `collect`, then `prepare` and `learn` without what they read. Four real ranks
prepare and learn from one sealed iteration, and count what they read (`overhead_reads.py`).
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from benchmarks.overhead_reads import SEED, measure_reads
from flows.run.home import Home
from yatt_core.experience.telemetry import read_telemetry

CONFIGS = Path(__file__).parent.parent / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"
VIRTUAL = CONFIGS / "virtual.yaml"
RANKS = 4
CLOCK = 10.0
"""Virtual seconds per real second, as in configs/virtual.yaml."""
LONG = (
    "trainer.engine.fixed_seconds=20",
    "rollout.engine.base_seconds=0.6",
    "checkpoints.every=1000",
    "evaluation.every=1000",
)
"""Makes an iteration of configs/virtual.yaml about 60 virtual seconds long."""
LEARN = "learn."
PREPARE = "prepare"
SKIPPED = 2
"""The first iterations, in which processes still load what they need."""


@dataclass(frozen=True, slots=True)
class Spent:
    """An iteration's real seconds.

    wall: from the commit before to its own.
    compute: the longest chain of engine compute.
    """

    iteration: int
    wall: float
    compute: float

    @property
    def overhead(self) -> float:
        """Seconds that are not engine compute."""
        return self.wall - self.compute


def spent_of(home: Path) -> list[Spent]:
    """Returns what each iteration of a home's only run took that neither evaluates nor saves, less the first ones.

    Of an iteration that was prepared or learned again, as after a resume, the last time counts.
    """
    with closing(sqlite3.connect(f"file:{home / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        query = "SELECT s.run, p.step, s.key, p.value FROM metric_point p JOIN metric_series s ON s.id = p.series"
        values: dict[int, dict[str, float]] = {}
        for _, step, key, value in ledger.execute(query):
            values.setdefault(int(step), {})[str(key)] = float(value)
        (run,) = {row[0] for row in ledger.execute("SELECT id FROM run")}
        receipts = {
            int(iteration): json.loads(receipt)["timing"]
            for iteration, receipt in ledger.execute(
                "SELECT iteration, receipt FROM phase_attempt WHERE phase = ? AND state = 'DONE' ORDER BY number",
                (PREPARE,),
            )
        }
    plain = {
        iteration: named
        for iteration, named in values.items()
        if iteration > SKIPPED and not {"seconds/evaluate", "seconds/checkpoint"} & set(named)
    }
    found = []
    for iteration, named in sorted(plain.items()):
        collect = max(value for key, value in named.items() if key.endswith("/rollout_seconds"))
        telemetry = read_telemetry(Home(home).run_folder(run), 0, iteration)
        learn = telemetry[max(name for name in telemetry if name.startswith(LEARN))]
        compute = collect + _compute(receipts[iteration]) + _compute(learn)
        found.append(Spent(iteration, named["seconds/iteration"], compute))
    return found


def _compute(timing: dict[str, float]) -> float:
    """Returns the seconds of a phase's engine compute: all that its engine took, less what reading took."""
    return timing["seconds"] - timing["load"]


def measure(spec: Path, changes: Sequence[str]) -> list[Spent]:
    """Trains a run in an empty home; returns what its iterations took."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        trained(Path(home), spec, changes)
        return spent_of(Path(home))


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=30, help="iterations of the quickstart (default: 30)")
    parser.add_argument("--virtual", type=int, default=8, help="iterations on virtual engines (default: 8)")
    parser.add_argument("--reads", action="store_true", help="only count what ranks read, which no load changes")
    arguments = parser.parse_args()
    load = load_average()
    progress(f"{RANKS} ranks prepare and learn")
    with tempfile.TemporaryDirectory(prefix="yatt") as folder:
        reads = measure_reads(Path(folder), RANKS)
    figures = {"read_bytes_per_rank_over_share": reads.files, "received_bytes_per_rank_over_share": reads.rows}
    details: dict[str, object] = {"bytes": reads.by_rank}
    if not arguments.reads:
        progress("the quickstart")
        quick = measure(QUICKSTART, [f"iterations={arguments.iterations}"])
        progress("virtual engines")
        long = measure(VIRTUAL, [f"iterations={arguments.virtual}", *LONG])
        figures["overhead_ms_quickstart"] = 1000 * statistics.median(one.overhead for one in quick)
        shares = [one.overhead / (one.overhead + CLOCK * one.compute) for one in long]
        figures["overhead_share_60s"] = statistics.median(shares)
        details["quickstart"] = [(one.iteration, one.wall, one.compute) for one in quick]
        details["virtual"] = [(one.iteration, one.wall, one.compute) for one in long]
    print_report(Report("overhead", figures, [SEED], [load, load_average()], details=details), arguments.json)


if __name__ == "__main__":
    main()
