"""The soak test: thousands of iterations through real flows in many sessions, during which nothing may leak.

`python -m tests.soak.run --iterations 5000 --session 250 -o FILE` starts a service group whose worker drives a run on
virtual engines in sessions, each a window of a deployment, and samples the memory of all processes. After each half,
finished sessions are aged beyond the retention period and the server vacuums. Progress goes to standard error; the
last line on standard output, and FILE, is one JSON object with the keys explained in docs/testing.md. Exits with
code 1 if any of `checks` is false.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from mlflow.tracking import MlflowClient

from db.ledger import Ledger
from flows.branching.branches import revise
from flows.run.home import Home
from tests.flows.group import SPEC, Group
from tests.soak import prefect_rows
from tests.soak.memory import Life, Sampler

SAMPLE_SECONDS = 2.0
VACUUM_SECONDS = 300.0
MOST_GROWTH = 0.1
MOST_TASK_RUNS_PER_SECOND = 30.0
TRACKED = "reward/mean"
NAME = "soak"
CHANGES = ("checkpoints.every=50", "checkpoints.keep=2")
ROUNDS = 2


@dataclass
class Soak:
    """A service group and its run.

    sizes: bytes of Prefect's database after each vacuum.
    left: rows by table after each vacuum, including new ones.
    overdue: number of rows left after each vacuum that it should have removed.
    before: rows by table before each vacuum.
    """

    group: Group
    iterations: int
    session: int
    run: str = ""
    task_runs: int = 0
    seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)
    left: list[dict[str, int]] = field(default_factory=list)
    overdue: list[int] = field(default_factory=list)
    before: list[dict[str, int]] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.group.home / "group" / "prefect" / "prefect.db"

    def take(self) -> None:
        """Drives all sessions, with a vacuum after each half."""
        ends = range(self.session, self.iterations + 1, self.session)
        half = len(ends) // ROUNDS
        for number, end in enumerate(ends, start=1):
            started = time.monotonic()
            self._drive(end)
            self.seconds += time.monotonic() - started
            _say(f"iteration {end} of {self.iterations}, {time.monotonic() - started:.0f} s")
            if number % half == 0:
                self._vacuum()

    def _drive(self, end: int) -> None:
        """Drives one window of a deployment: a flow run of the group's Prefect server, executed by its worker."""
        if self.run:
            revise(Home(self.group.home), self.run, [f"iterations={end}"])
        else:
            changes = [word for change in (f"iterations={end}", *CHANGES) for word in ("--set", change)]
            self.run = self.group.yatt("deploy", str(SPEC), "--manual", "--name", NAME, *changes)["run"]
        name, message = self.group.ending(self.group.start_by_hand(NAME))
        if name != "Completed":
            raise SystemExit(f"the session to {end}: {name}: {message}")

    def _vacuum(self) -> None:
        down = ("ops.cli.main", "--home", str(self.group.home), "down")
        self.group.run(*down)
        self.before.append(prefect_rows.rows(self.database))
        self.task_runs += self.before[-1]["task_run"]
        prefect_rows.age(self.database)
        self.group.up()
        deadline = time.monotonic() + VACUUM_SECONDS
        while prefect_rows.overdue(self.database) and time.monotonic() < deadline:
            time.sleep(1)
        self.overdue.append(prefect_rows.overdue(self.database))
        self.left.append(prefect_rows.rows(self.database))
        self.group.run(*down)
        self.sizes.append(prefect_rows.size(self.database))
        _say(f"vacuum: {self.before[-1]} -> {self.left[-1]}, {self.sizes[-1] / 2**20:.1f} MiB")
        self.group.up()

    def processes(self) -> Mapping[int, str]:
        """Returns the processes with the home in their command line or environment: group, drivers, Ray and actors."""
        found = {}
        place = str(self.group.home)
        for process in psutil.process_iter(["pid", "cmdline", "name"]):
            try:
                words = process.info["cmdline"] or []
                if place in " ".join(words) or place in " ".join(process.environ().values()):
                    found[process.info["pid"]] = _kind(words, process.info["name"])
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


MODULES = (
    "flows.prefect_io.prefect_serving",
    "prefect worker",
    "mlflow",
    "dashboard",
    "keeper",
    "ops.queueing.scheduler",
    "supervisor",
    "gcs_server",
    "raylet",
    "ops.cli.main",
)


def _kind(words: list[str], name: str) -> str:
    line = " ".join(words)
    if line.startswith("ray::"):
        return words[0]
    return next((part for part in MODULES if part in line), name)


def _points(tracking: str, mlflow_run: str) -> int:
    history = MlflowClient(tracking).get_metric_history(mlflow_run, TRACKED)
    return len({point.step for point in history})


def measure(group: Group, iterations: int, session: int) -> dict[str, Any]:
    """Runs the soak; returns its report."""
    soak = Soak(group, iterations, session)
    group.up()
    with Sampler(soak.processes, SAMPLE_SECONDS) as sampler:
        soak.take()
    with Ledger.open(f"sqlite:///{group.home / 'ledger.db'}", migrate=False) as ledger:
        row = ledger.overview.line(soak.run).run
        commits = [link.body["iteration"] for link in ledger.events.of_kind(soak.run, "commit")]
    lives: list[Life] = sampler.lives()
    points = _points(f"sqlite:///{group.home / 'mlflow.db'}", str(row.mlflow_run_id))
    rate = soak.task_runs / soak.seconds
    checks = {
        "gapless": commits == list(range(iterations + 1)),
        "memory_flat": all(life.growth <= MOST_GROWTH for life in lives),
        "points_complete": points == iterations,
        "vacuumed": not any(soak.overdue),
        "file_does_not_grow": soak.sizes[-1] <= soak.sizes[0],
        "task_runs_bounded": rate <= MOST_TASK_RUNS_PER_SECOND,
    }
    return {
        "iterations": iterations,
        "session": session,
        "seconds": round(soak.seconds, 1),
        "task_runs": soak.task_runs,
        "task_runs_per_second": round(rate, 2),
        "points": points,
        "sizes_bytes": soak.sizes,
        "rows_before": soak.before,
        "rows_left": soak.left,
        "memory": sorted((life.report() for life in lives), key=lambda report: -float(report["growth"])),
        "checks": checks,
    }


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--session", type=int, default=250)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.iterations % (ROUNDS * arguments.session):
        parser.error(f"--iterations: a multiple of {ROUNDS} x --session, {ROUNDS * arguments.session}")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    group = Group(folder / "runs", dict(os.environ))
    try:
        report = measure(group, arguments.iterations, arguments.session)
    finally:
        group.run("ops.cli.main", "--home", str(group.home), "down")
    text = json.dumps(report)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    shutil.rmtree(folder)
    return 0 if all(report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
