"""How long does a run take until it learns, and how much of the machine's time?

Consumes the number of rounds, and a commit to compare with. In each round, the quickstart is started in an empty home, and then
once more in that home, by this tree and by that commit's, in turn. `--sweep` has a sweep of four trials of three iterations
driven, one after the other, and `--whole` the whole quickstart. The commit has a worktree and an environment of its own below
`build/start/`, made as its users would. With `--group` the second start, and the sweep, are beside `yatt up`, which lends them a
warm Ray head. The ledgers say when phases began and iterations were committed; the CPU time is that of all processes that the
command has started. `--spec` starts another spec; the CPU seconds by part are those of the table in
`yatt_core/planning/start.py`.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from yatt_core.spec import load_spec

ROOT = Path(__file__).parents[1]
QUICKSTART = Path("configs", "quickstart.yaml")
BUILDS = ROOT / "build" / "start"
MARK = "YATT_BENCHMARK_START"
"""The variable by which a command's processes are known, also those that outlive it."""
LOOK_SECONDS = 0.1
ANY_PORTS = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")
QUIET_SECONDS = 5.0
QUIET_SHARE = 0.3
"""Of a core: a group uses no more once its warm head, and the modules that its workers share, are loaded."""
GROUP_SECONDS = 300.0
"""How long a group may take to come to rest."""
ITERATION = 1
OTHER = "other"
PARTS = {
    "fork_server": "yatt_core.cluster.fork_server",
    "prefect": "prefect_serving",
    "supervisor": "yatt_core.supervisor",
    "ray": r"yatt_core\.cluster\.head|worker_start|/ray/|ray::(IDLE|\w*Agent)\b",
    "command": r"ops\.cli\.main.* train ",
}
"""The services and the command, by an expression that is found in their command lines; the first one that is found counts."""
ACTOR = re.compile(r"ray::(\w+)")
REWARDS = "yatt_core.rewards.worker"
"""The process that calls reward functions: the command has one for its checks, and each controller."""


@dataclass(frozen=True, slots=True)
class Build:
    """A tree of YATT and the Python that runs it."""

    root: Path
    python: Path


@dataclass(slots=True)
class CpuMeter:
    """Adds up the CPU time of all processes of a command.

    seconds: of each process, as last seen.
    parts: the part of the start that each of them is, as last seen: a copy of the fork server becomes a worker of Ray, and that
        an actor.
    """

    home: str
    seconds: dict[tuple[int, float], float] = field(default_factory=dict)
    parts: dict[tuple[int, float], str] = field(default_factory=dict)
    strangers: set[tuple[int, float]] = field(default_factory=set)

    def look(self) -> None:
        """Reads the times of the processes that exist."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                key = process.pid, process.create_time()
                if key in self.strangers:
                    continue
                if key not in self.seconds and process.environ().get(MARK) != self.home:
                    # A process that is about to become another program still has the environment of its parent.
                    if time.time() - key[1] > 1.0:
                        self.strangers.add(key)
                    continue
                times = process.cpu_times()
                self.seconds[key] = times.user + times.system
                self.parts.setdefault(key, OTHER)
                self.parts[key] = part_of(" ".join(process.cmdline()))

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self.seconds.values())

    @property
    def by_part(self) -> dict[str, float]:
        """The sum of each part of the start; of actors and of processes for rewards, the mean of one."""
        sums: dict[str, float] = {}
        for key, part in self.parts.items():
            sums[part] = sums.get(part, 0.0) + self.seconds[key]
        counts = Counter(self.parts.values())
        services = {*PARTS, OTHER}
        return {part: seconds if part in services else seconds / counts[part] for part, seconds in sums.items()}


def part_of(command_line: str) -> str:
    """Returns the part of the start that a process is: a service, the command, rewards, or the class of an actor."""
    for part, expression in PARTS.items():
        if re.search(expression, command_line):
            return part
    if REWARDS in command_line:
        return "rewards"
    actor = ACTOR.match(command_line)
    return OTHER if actor is None else actor[1]


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took.

    cpu_s: CPU seconds of all processes until the first phase began.
    over_work_s: seconds until the first commit, less those of the phases themselves.
    parts: the CPU seconds by part.
    """

    sft_begins_s: float
    first_commit_s: float
    cpu_s: float
    over_work_s: float
    parts: Mapping[str, float]


def build_of(commit: str) -> Build:
    """Returns a worktree of a commit and an environment in it; makes them unless they exist."""
    name = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    root = BUILDS / name
    if not root.exists():
        progress(f"a worktree of {name[:12]}")
        subprocess.run(["git", "worktree", "add", "--detach", str(root), name], cwd=ROOT, stdout=sys.stderr, check=True)
    progress(f"the environment of {name[:12]}")
    subprocess.run([sys.executable, "ops/bootstrap.py"], cwd=root, stdout=sys.stderr, check=True)
    return Build(root, root / ".venv" / "bin" / "python")


def yatt(build: Build, home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Starts a command of a build, whose processes are marked with the home."""
    environment = {**os.environ, MARK: str(home), "HOME": str(home.parent), "PYTHONPATH": str(build.root)}
    command = [str(build.python), "-m", "ops.cli.main", "--home", str(home), *words]
    return subprocess.Popen(command, cwd=build.root, env=environment, stdout=sys.stderr, stderr=subprocess.STDOUT)


def start_once(build: Build, home: Path, spec: Path, run: str) -> Start:
    """Starts a run up to its first iteration.

    run: the name that the run will have.
    """
    home.mkdir(exist_ok=True)
    meter = CpuMeter(str(home))
    began = time.time()
    running = yatt(build, home, "train", str(spec), "--until", str(ITERATION))
    sft = None
    while sft is None and running.poll() is None:
        meter.look()
        sft = number(home, "SELECT min(dispatched_at) FROM phase_attempt WHERE phase = 'sft' AND run = ?", run)
        time.sleep(LOOK_SECONDS)
    if running.wait() or sft is None:
        raise RuntimeError(f"{spec} of {build.root} ended with {running.returncode}")
    commit = committed_at(home, run, ITERATION)
    return Start(
        sft_begins_s=sft / 1000 - began,
        first_commit_s=commit - began,
        cpu_s=meter.total,
        over_work_s=commit - began - work_seconds(home, run, ITERATION),
        parts=meter.by_part,
    )


@contextmanager
def group(build: Build, home: Path) -> Iterator[None]:
    """Serves a home as `yatt up` does; begins once the group has come to rest, with what it keeps warm."""
    if code := yatt(build, home, "up", "--detach", *ANY_PORTS).wait():
        raise RuntimeError(f"the service group of {build.root} ended with {code}")
    try:
        rest(CpuMeter(str(home)))
        yield
    finally:
        yatt(build, home, "down").wait()


def rest(
    meter: CpuMeter, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Returns once the processes of a home have used little time for a while.

    clock, sleep: for tests.

    Raises `RuntimeError` if they go on for too long.
    """
    meter.look()
    end = clock() + GROUP_SECONDS
    while clock() < end:
        used = meter.total
        began = clock()
        sleep(QUIET_SECONDS)
        meter.look()
        if meter.total - used < QUIET_SHARE * (clock() - began):
            return
    raise RuntimeError(f"the service group of {meter.home} is still busy after {GROUP_SECONDS:g} s")


def number(home: Path, query: str, *values: object) -> float | None:
    """Returns a number of the ledger; None if there is none yet.

    Read without YATT, since ledgers of other commits have other columns.
    """
    ledger = home / "ledger.db"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        row = connection.execute(query, values).fetchone()
        return None if row is None or row[0] is None else float(row[0])
    return None


def committed_at(home: Path, run: str, iteration: int) -> float:
    """Returns when an iteration was committed, in seconds since 1970."""
    moment = number(home, "SELECT committed_at FROM iteration WHERE run = ? AND iteration = ?", run, iteration)
    assert moment is not None, "the run has ended well"
    return moment / 1000


def work_seconds(home: Path, run: str, until: int) -> float:
    """Returns the seconds of a run's phases up to an iteration, without those that only make its actors ready."""
    query = (
        "SELECT sum(seconds) FROM phase_attempt WHERE run = ? AND iteration <= ? AND state = 'DONE' "
        "AND phase NOT IN ('start', 'recover')"
    )
    return number(home, query, run, until) or 0.0


def trial_starts(build: Build, home: Path) -> list[float]:
    """Returns the seconds over their work of all trials of a sweep but the first: from the end of the one before to their commit.

    All trials are forks of one run after its supervised fine-tuning.
    """
    rates = "trainer.optimizer.learning_rate=2e-4,4e-4,6e-4,8e-4"
    options = ("--grid", "--over", rates, "--at-once", "1", "--set", "iterations=3", "--set", "evaluation.every=3")
    if code := yatt(build, home, "sweep", str(QUICKSTART), *options).wait():
        raise RuntimeError(f"the sweep of {build.root} ended with {code}")
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        query = "SELECT run FROM driver_session GROUP BY run ORDER BY min(started_at)"
        runs = [row[0] for row in connection.execute(query)]
    seconds = []
    for before, run in pairwise(runs[1:]):
        ended = number(home, "SELECT max(ended_at) FROM driver_session WHERE run = ?", before)
        assert ended is not None, "its session is over"
        seconds.append(committed_at(home, run, ITERATION) - ended / 1000 - work_seconds(home, run, ITERATION))
    return seconds


def whole_seconds(build: Build, folder: Path) -> float:
    """Returns the wall seconds of the whole quickstart in an empty home."""
    began = time.time()
    if code := yatt(build, folder / "runs", "train", str(QUICKSTART)).wait():
        raise RuntimeError(f"the quickstart of {build.root} ended with {code}")
    return time.time() - began


def figures_of(cold: Sequence[Start], warm: Sequence[Start]) -> dict[str, float]:
    """Returns the medians: of starts in empty homes, and of further ones in the same homes."""
    return {
        "sft_begins_s": statistics.median(start.sft_begins_s for start in cold),
        "first_commit_s": statistics.median(start.first_commit_s for start in cold),
        "cpu_s": statistics.median(start.cpu_s for start in cold),
        "first_commit_s_warm_over_work": statistics.median(start.over_work_s for start in warm),
        **{f"cpu_s_{part}": statistics.median(start.parts.get(part, 0.0) for start in cold) for part in parts_of(cold)},
    }


def parts_of(starts: Sequence[Start]) -> list[str]:
    """Returns the parts that any of the starts had, sorted."""
    return sorted({part for start in starts for part in start.parts})


def measured(
    builds: Mapping[str, Build], spec: Path, rounds: int, *, whole: bool, sweep: bool, grouped: bool
) -> dict[str, dict[str, float]]:
    """Returns the figures of each build.

    grouped: whether second starts and sweeps are beside `yatt up`.
    """
    name_of_run = load_spec(spec).name
    beside = group if grouped else _alone
    cold: dict[str, list[Start]] = {name: [] for name in builds}
    warm: dict[str, list[Start]] = {name: [] for name in builds}
    for round_ in range(rounds):
        for name, build in builds.items():
            progress(f"round {round_ + 1} of {rounds}: {name}")
            with folder() as place:
                cold[name].append(start_once(build, place / "runs", spec, f"{name_of_run}-1"))
                with beside(build, place / "runs"):
                    warm[name].append(start_once(build, place / "runs", spec, f"{name_of_run}-2"))
    found = {name: figures_of(cold[name], warm[name]) for name in builds}
    for name, build in builds.items():
        if sweep:
            progress(f"a sweep: {name}")
            with folder() as place, beside(build, place / "runs"):
                found[name]["trial_start_s_over_work"] = statistics.median(trial_starts(build, place / "runs"))
        if whole:
            progress(f"the whole quickstart: {name}")
            with folder() as place:
                found[name]["quickstart_s"] = whole_seconds(build, place)
    return found


def _alone(build: Build, home: Path) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def folder() -> Iterator[Path]:
    """Yields a folder of its own for a home."""
    with tempfile.TemporaryDirectory(prefix="yatt-start-") as name:
        yield Path(name)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argument_parser(__doc__)
    made.add_argument("--spec", type=Path, default=QUICKSTART, help=f"the spec of the starts (default: {QUICKSTART})")
    made.add_argument("--rounds", type=int, default=3, help="starts of each build; the median counts (default: 3)")
    made.add_argument("--against", metavar="COMMIT", help="also measure this commit, in turn, and report ratios")
    made.add_argument("--sweep", action="store_true", help="also drive a sweep of four trials, once for each build")
    made.add_argument(
        "--group", action="store_true", help="the second start in a home, and the sweep, are beside `yatt up`"
    )
    made.add_argument("--whole", action="store_true", help="also run the whole quickstart, once for each build")
    return made


def main() -> None:
    """Takes the times and reports them."""
    arguments = parser().parse_args()
    load = load_average()
    builds = {"this": Build(ROOT, Path(sys.executable))}
    if arguments.against:
        builds["against"] = build_of(arguments.against)
    found = measured(
        builds,
        arguments.spec,
        arguments.rounds,
        whole=arguments.whole,
        sweep=arguments.sweep,
        grouped=arguments.group,
    )
    figures: dict[str, float | None] = dict(found["this"])
    other = found.get("against", {})
    figures |= {
        f"{name}_ratio": found["this"][name] / seconds for name, seconds in other.items() if seconds and name in figures
    }
    baselines = {f"{name}_against": seconds for name, seconds in other.items()}
    print_report(
        Report(name="start", figures=figures, seeds=[0], load=[load, load_average()], baselines=baselines),
        arguments.json,
    )


if __name__ == "__main__":
    main()
