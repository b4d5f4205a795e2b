"""How much does a commit of the ledger cost, and does the cost grow with the run?

Compares commits with a bare one-row transaction of the same durability on the same disk, alternating within one run.
The iterations are recorded as a driver records them: 4 controllers' shards, 30 metrics, six phases, placement,
outbox, occasional checkpoints; nothing is pruned.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from sqlalchemy import text
from sqlalchemy.engine import make_url

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from db.core.engine import Fence, database_url, open_engine
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import Metric
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow, DecisionRow, ShardRow

ITERATIONS = 10_000
WINDOW = 500
"""Iterations timed at the start and at the end."""
SHARDS = 4
METRICS = 30
PROMPTS_A_SHARD = 16
CHECKPOINT_EVERY = 50
PHASES = ("place", "collect", "prepare", "learn", "sync", "commit")
BARE_TABLE = "commit_benchmark"


class Bare:
    """A one-row transaction through the database's driver alone, with the settings and the disk of the ledger."""

    def __init__(self, address: str | Path) -> None:
        self._engine = open_engine(database_url(address))
        self._connection = self._engine.raw_connection()
        self._begin = "BEGIN IMMEDIATE"
        if self._engine.dialect.name == "postgresql":
            self._begin = "BEGIN"
            self._connection.driver_connection.autocommit = True  # type: ignore[union-attr]
        self._cursor = self._connection.cursor()
        self._cursor.execute(f"CREATE TABLE {BARE_TABLE} (number BIGINT PRIMARY KEY, value TEXT NOT NULL)")
        self._number = 0

    def transact(self) -> float:
        """Runs one transaction and returns its seconds."""
        self._number += 1
        started = time.perf_counter()
        self._cursor.execute(self._begin)
        self._cursor.execute(f"INSERT INTO {BARE_TABLE} VALUES ({self._number}, '{'x' * 100}')")
        self._cursor.execute("COMMIT")
        return time.perf_counter() - started

    def close(self) -> None:
        """Drops its table and closes the connection."""
        self._cursor.execute(f"DROP TABLE {BARE_TABLE}")
        self._connection.close()
        self._engine.dispose()


class Driver:
    """Records a run's iterations as the flow does."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        run = ledger.runs.create("benchmark", {"seed": 0}, "d" * 64, ITERATIONS).id
        self.fence: Fence = ledger.leases.acquire(run, this_process("benchmark"), ttl_seconds=600)

    def iterate(self, iteration: int) -> float:
        """Records one iteration and returns the seconds that its commit took."""
        seconds = 0.0
        for phase in PHASES:
            attempt = self.ledger.phases.plan(self.fence, 0, iteration, phase)
            self.ledger.phases.dispatch(self.fence, attempt)
            self.ledger.phases.history(self.fence.run, phase)
            if phase == "place":
                decision = {"rollout": [0, 1], "trainer": [0, 1]}
                row = DecisionRow(
                    branch=0,
                    iteration=iteration,
                    seq=0,
                    inputs={"load": 0.5},
                    decision=decision,
                    prediction={"seconds": 3.0},
                    reason="colocated",
                )
                self.ledger.records.decision(self.fence, row)
            if phase == "collect":
                self._shards(iteration)
            if phase == "commit":
                seconds = self._commit(iteration)
            receipt = {"tokens": 4096, "seconds": 1.5, "digest": "d" * 64}
            self.ledger.phases.finish(
                fence=self.fence, attempt=attempt, receipt=receipt, seconds=1.5, bytes_to_driver=4096
            )
        self._deliver(iteration)
        return seconds

    def _shards(self, iteration: int) -> None:
        for shard in range(SHARDS):
            folder = f"b00/i{iteration:06d}/w00-s{shard:04d}.t0001"
            digests = bytes(32 * PROMPTS_A_SHARD)
            sums = {"reward": 1.5, "length": 900.0, "truncated": 2.0}
            row = ShardRow(
                branch=0,
                iteration=iteration,
                wave=0,
                shard=shard,
                term=1,
                folder=folder,
                manifest_sha256="d" * 64,
                samples=PROMPTS_A_SHARD * 8,
                tokens=4096,
                group_digests=digests,
                sums=sums,
            )
            self.ledger.records.shard(self.fence, row)

    def _commit(self, iteration: int) -> float:
        commit = IterationCommit(
            branch=0,
            iteration=iteration,
            control_state={"cursor": iteration * 64, "moments": {f"m{i}": iteration / 7 for i in range(12)}},
            logged_at_ms=1_700_000_000_000 + iteration,
            experience_digest="e" * 64,
            weights_digest="f" * 64,
            fingerprint={"loss": 0.5, "gradient_norm": 1.25, "weights_digest": "f" * 64},
            metrics=[Metric(f"group{i % 5}/metric_{i}", iteration / (i + 1)) for i in range(METRICS)],
        )
        started = time.perf_counter()
        self.ledger.commits.commit(self.fence, commit)
        return time.perf_counter() - started

    def _deliver(self, iteration: int) -> None:
        self.ledger.leases.renew(self.fence, 600)
        rows = self.ledger.outbox.claim(self.fence)
        self.ledger.outbox.delivered(self.fence, [row.id for row in rows])
        if iteration % CHECKPOINT_EVERY == 0:
            name = f"b00-i{iteration:06d}-e0001"
            row = CheckpointRow(
                run=self.fence.run,
                branch=0,
                iteration=iteration,
                term=1,
                folder=name,
                manifest_sha256="d" * 64,
                bytes=10**9,
                weights_digest="f" * 64,
                seconds=1.5,
            )
            self.ledger.records.checkpoint(self.fence, row)
            entry = OutboxEntry(f"{self.fence.run}/{name}", "artifact", {"folder": name}, 1_700_000_000_000)
            self.ledger.outbox.enqueue(self.fence, [entry])


def measure(iterations: int = ITERATIONS, dsn: str | None = None) -> dict[str, float]:
    """Measures a run of `iterations` iterations on SQLite in a temporary folder, or in the database at `dsn`.

    dsn: an empty PostgreSQL database; the benchmark leaves its ledger there.

    Times are in milliseconds, sizes in MB (10^6 bytes).
    """
    window = min(WINDOW, iterations // 4)
    with _opened(dsn) as (address, ledger, bare):
        driver = Driver(ledger)
        commits: list[float] = []
        bares: dict[int, float] = {}
        memory: list[float] = []
        for iteration in range(iterations):
            commits.append(driver.iterate(iteration))
            if iteration < window or iteration >= iterations - window:
                bares[iteration] = bare.transact()
            if iteration in (iterations // 4, iterations - 1):
                memory.append(_resident_mb())
            if (iteration + 1) % 1000 == 0:
                progress(f"{iteration + 1} iterations, commit {_median_ms(commits[-window:]):.3f} ms")
        size = _size_mb(address)
    first = commits[:window]
    last = commits[-window:]
    bare_first = [value for at, value in bares.items() if at < window]
    bare_last = [value for at, value in bares.items() if at >= window]
    return {
        "commit_ratio": statistics.median(first) / statistics.median(bare_first),
        "commit_ratio_late": statistics.median(last) / statistics.median(bare_last),
        f"commit_ratio_after_{iterations}": statistics.median(last) / statistics.median(first),
        f"database_mb_after_{iterations}": size,
        "driver_memory_growth_mb": memory[-1] - memory[0],
        "commit_ms": _median_ms(first),
        f"commit_ms_after_{iterations}": _median_ms(last),
        "bare_ms": _median_ms(bare_first),
        f"bare_ms_after_{iterations}": _median_ms(bare_last),
    }


@contextmanager
def _opened(dsn: str | None) -> Iterator[tuple[str | Path, Ledger, Bare]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="yatt-commit-")))
        address = dsn or folder / "ledger.sqlite"
        ledger = stack.enter_context(Ledger.open(address))
        bare = Bare(dsn or folder / "bare.sqlite")
        stack.callback(bare.close)
        yield address, ledger, bare


def _size_mb(address: str | Path) -> float:
    """Returns the megabytes of a ledger's tables and indexes."""
    postgresql = "SELECT pg_database_size(current_database())"
    sqlite = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    engine = open_engine(database_url(address))
    with engine.begin() as connection:
        size = connection.execute(text(postgresql if engine.dialect.name == "postgresql" else sqlite)).scalar_one()
    engine.dispose()
    return float(size / 1e6)


def _resident_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 1e6)


def _median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000


def main() -> None:
    """Measures and prints the report."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations to record (default {ITERATIONS})"
    )
    parser.add_argument("--dsn", help="an empty PostgreSQL database to use instead of SQLite")
    arguments = parser.parse_args()
    before = load_average()
    figures = measure(arguments.iterations, arguments.dsn)
    database = "sqlite" if arguments.dsn is None else make_url(arguments.dsn).get_backend_name()
    baselines = {name: value for name, value in figures.items() if name.startswith("bare_")}
    kept = {name: value for name, value in figures.items() if name not in baselines}
    details = {"database": database, "iterations": arguments.iterations}
    print_report(
        Report(
            name="commit", figures=kept, seeds=[0], load=[before, load_average()], baselines=baselines, details=details
        ),
        arguments.json,
    )


if __name__ == "__main__":
    main()
