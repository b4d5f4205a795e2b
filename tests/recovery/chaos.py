"""The seeded chaos driver: strikes every part of a real run about 200 times and compares it with an undisturbed one.

`python -m tests.recovery.chaos --seed S --minutes 75 --faults 200 -o FILE` runs the torch engines in exact mode at
temperature 1 on PostgreSQL; `--spec tests/recovery/chaos_ahead.yaml` adds a lag and slices. Progress goes to standard
error; the last line on standard output, and FILE, is one JSON object with the keys explained in docs/testing.md. A strike
counts if the ledger, or for a service its process, shows an effect; otherwise it is repeated at the end. The seed determines
the schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.results import run_results
from tests.flows.tools import same_result
from tests.postgresql import Server, start_server
from tests.recovery.ledger_watch import LedgerWatch, OpenPhase
from tests.recovery.strikes import PLAN, RECOVER, WARM, Strike, ahead, schedule
from tests.recovery.struck_run import StruckRun, own_services
from tests.recovery.warm_heads import HeadOwner, warm_heads
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parent / "chaos.yaml"
AHEAD = Path(__file__).parent / "chaos_ahead.yaml"
"""The same run with a lag and slices."""
PHASE_SECONDS = 240.0
EFFECT_SECONDS = 120.0
PROGRESS_SECONDS = 180.0
POLL_SECONDS = 0.002
TRIES = 4
MOST_DRIVERS = 8
"""Drivers that may be lost without a commit. Strikes may hit every attempt at an iteration, and a run at the defaults is paused
once more than ten drivers were lost without anything new."""
RESTARTED = ("prefect", "supervisor", "fork_server", "owner")
"""Kinds of strikes at a process that another one starts again."""
ROLES = {"controller": "controller-", "engine": "rollout-", "trainer": "trainer-"}


@dataclass
class Record:
    """Strikes with and without effect, and the seconds that drivers took to recover (warm, cold)."""

    faults: list[Strike] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    lost: int = 0


class Chaos:
    """Strikes a run until the schedule is done or the time is up."""

    def __init__(self, struck: StruckRun, server: Server, seed: int, prefect_seconds: float) -> None:
        self._struck = struck
        self._server = server
        self._watch = struck.watch
        self._choose = random.Random(f"yatt.chaos.targets:{seed}")
        self._highest = -1
        self._term_at_commit = 0
        self._prefect_seconds = prefect_seconds
        self.record = Record()

    def run(self, strikes: list[Strike], seconds: float) -> Record:
        """Strikes one after another, each once the run has recovered from the last one."""
        deadline = time.monotonic() + seconds
        pending = [(strike, 1) for strike in strikes]
        while pending and time.monotonic() < deadline:
            strike, tries = pending.pop(0)
            self._let_commit()
            said = self._one(strike)
            say(
                f"{len(self.record.faults)} faults, iteration {self._highest}, {len(pending)} to come: {strike}: {said}"
            )
            if said != "done" and tries < TRIES:
                pending.append((strike, tries + 1))
        # However few strikes there were, there must be an iteration to compare.
        self._await(lambda: self._highest >= 2, PROGRESS_SECONDS)
        return self.record

    def _let_commit(self) -> None:
        """Waits for a commit if many drivers were lost since the last one."""
        self._tend()
        committed = self._highest
        if self._watch.term() - self._term_at_commit >= MOST_DRIVERS:
            self._await(lambda: self._highest > committed, PROGRESS_SECONDS)

    def _one(self, strike: Strike) -> str:
        """Strikes once; returns the outcome in words."""
        if strike.phase == RECOVER and not self._struck.kill_driver():
            return "no driver to recover"
        blow = self._prepare(strike)
        phase = self._await_phase(strike.phase)
        if phase is None:
            self.record.without_effect.append(str(strike))
            return "the phase did not come"
        if strike.phase == RECOVER:
            blow = self._prepare(strike)
        before = self._watch.term()
        pids = self._pids()
        moment = int(time.time() * 1000)
        if not blow():
            self.record.without_effect.append(str(strike))
            return "nothing to strike"
        if not self._await(lambda: self._has_effect(strike.kind, before, pids, moment), EFFECT_SECONDS):
            self.record.without_effect.append(str(strike))
            return "no effect"
        ended = self._watch.ended_at(phase)
        hit = ended is None or ended >= moment
        self.record.faults.append(strike if hit else Strike(strike.kind, "after " + strike.phase))
        if not self._await(lambda: self._watch.done_since(moment), PROGRESS_SECONDS):
            self.record.stuck.append(str(strike))
            self._struck.kill_driver()
            return "stuck: the driver is killed"
        self._book_recovery(strike, before)
        return "done" if hit else "too late for the phase"

    def _prepare(self, strike: Strike) -> Callable[[], bool]:
        """Returns the function that strikes; a target whose lookup takes time is chosen here."""
        struck = self._struck
        if strike.kind in ROLES:
            return struck.actor(ROLES[strike.kind], self._choose)
        crash = self._choose.random() < 0.5
        blows: dict[str, Callable[[], bool]] = {
            "driver": struck.kill_driver,
            "pause": struck.pause,
            "cold": struck.cold,
            "raylet": struck.raylet,
            "prefect": lambda: struck.prefect(self._prefect_seconds),
            "supervisor": struck.supervisor,
            "fork_server": struck.fork_server,
            "owner": struck.owner,
            "database": lambda: self._server.restart(crash) is None,
        }
        return blows[strike.kind]

    def _has_effect(self, kind: str, term: int, pids: Mapping[str, int | None], moment: int) -> bool:
        if kind in ("driver", "cold", "pause"):
            return self._watch.term() > term
        if kind in RESTARTED:
            now = self._struck.service_pid(kind)
            return now is not None and now != pids[kind]
        return kind == "database" or self._watch.failures_since(moment) > 0 or self._watch.term() > term

    def _pids(self) -> dict[str, int | None]:
        return {name: self._struck.service_pid(name) for name in RESTARTED}

    def _await_phase(self, name: str) -> OpenPhase | None:
        """Waits until a phase is dispatched, tending the driver meanwhile; returns it, or None after a timeout."""
        deadline = time.monotonic() + PHASE_SECONDS
        tended = 0.0
        while time.monotonic() < deadline:
            phase = self._watch.open_phase()
            if phase is not None and phase.phase == name and (phase.iteration > 0 or name == RECOVER):
                return phase
            if time.monotonic() - tended > 0.2:
                self._tend()
                tended = time.monotonic()
            time.sleep(POLL_SECONDS)
        return None

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._tend()
            if condition():
                return True
            time.sleep(0.05)
        return False

    def _tend(self) -> None:
        self._struck.tend()
        iteration = self._watch.iteration()
        self.record.lost += max(0, self._highest - iteration)
        if iteration > self._highest:
            self._term_at_commit = self._watch.term()
        self._highest = max(self._highest, iteration)

    def _book_recovery(self, strike: Strike, term: int) -> None:
        """Records the time from the start of the next driver to its first phase after recovery."""
        if strike.kind not in ("driver", "cold") or strike.phase == RECOVER:
            return
        term = self._watch.term()
        self._await(lambda: self._watch.first_dispatch(term) is not None, PROGRESS_SECONDS)
        dispatched = self._watch.first_dispatch(term)
        launched = self._struck.term_launched.get(term)
        if dispatched is not None and launched is not None:
            taken = self.record.warm if strike.kind == "driver" else self.record.cold
            taken.append((dispatched - launched) / 1000)


def say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


@contextmanager
def bed(folder: Path) -> Iterator[tuple[Home, Server, dict[str, str]]]:
    """Yields a home on its own PostgreSQL server, the server, and the environment of drivers."""
    server = start_server(folder / "postgresql")
    try:
        environment = own_services(server.create("ledger"), folder / "failpoints")
        (folder / "failpoints").mkdir()
        os.environ["YATT_LEDGER"] = environment["YATT_LEDGER"]
        yield Home(folder / "runs"), server, environment
    finally:
        os.environ.pop("YATT_LEDGER", None)
        server.close()


@contextmanager
def started(
    home: Home,
    spec: RunSpec,
    environment: Mapping[str, str],
    owner: HeadOwner | None = None,
    until: int | None = None,
) -> Iterator[StruckRun]:
    """Creates a run and ends all of its processes afterwards.

    owner: of warm heads that the run may take over.
    until: the iteration after which its drivers stop; None for the run's target.
    """
    run = create_run(home, spec)
    watch = LedgerWatch(environment["YATT_LEDGER"], run)
    struck = StruckRun(
        home=home,
        run=run,
        environment=environment,
        watch=watch,
        lease=spec.recovery.lease_seconds,
        owner=owner,
        until=until,
    )
    try:
        yield struck
    finally:
        struck.stop()
        watch.close()


def undisturbed(home: Home, spec: RunSpec, environment: Mapping[str, str], until: int) -> str:
    """Drives a run without strikes until an iteration and returns its name.

    Its target stays the struck run's: with slices, the last iterations before it would start fewer groups.
    """
    with started(home, spec, environment, until=until) as quiet:
        while quiet.watch.iteration() < until:
            if quiet.exits:
                raise RuntimeError(
                    f"the undisturbed driver ended with {quiet.exits}: see {quiet.folder / 'driver.txt'}"
                )
            quiet.tend()
            time.sleep(0.5)
        quiet.await_end()
    return quiet.run


def figures(
    home: Home, struck: StruckRun, quiet: str, record: Record, published: Path, counts: Counter[tuple[int, int]]
) -> dict[str, Any]:
    """Returns the keys that `make chaos` prints."""
    with Ledger.open(home.ledger) as ledger:
        one = run_results(ledger, struck.run)
        other = run_results(ledger, quiet)
        broken = ledger.events.verify(struck.run)
    missing = [i for i in range(one.iteration + 1) if not any(iteration == i for _, iteration in counts)]
    shards = Counter(line.rpartition(".t")[0] for line in published.read_text().splitlines() if struck.run in line)
    kinds = Counter(strike.kind for strike in record.faults)
    kinds["during_recovery"] = sum(strike.phase == RECOVER for strike in record.faults)
    return {
        "faults": len(record.faults),
        "faults_by_kind": dict(kinds),
        "faults_by_phase": dict(Counter(strike.phase for strike in record.faults)),
        "lost_iterations": record.lost + len(missing),
        "duplicate_iterations": sum(count - 1 for count in counts.values()),
        "digests_equal": int(same_result(one, other)),
        "audit_chain_sound": int(broken is None),
        "regenerated_shards": sum(count - 1 for count in shards.values()),
        "recover_warm_p50_s": quantile(record.warm, 0.5),
        "recover_warm_p95_s": quantile(record.warm, 0.95),
        "recover_cold_max_s": max(record.cold, default=None),
        "iterations": one.iteration,
        "without_effect": record.without_effect,
        "stuck": record.stuck,
        "unasked_exits": dict(Counter(struck.exits)),
    }


def quantile(values: list[float], share: float) -> float | None:
    """Returns a quantile by linear interpolation, or None without values."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def chaos(
    folder: Path,
    spec: RunSpec,
    strikes: list[Strike],
    seed: int,
    seconds: float,
    prefect_seconds: float = 5.0,
    warm: bool = False,
) -> dict[str, Any]:
    """Strikes a run for at most `seconds`, ends it, and compares it with an undisturbed run of as many iterations.

    folder: the folder for the files of both runs.
    prefect_seconds: how long a struck Prefect server stays down.
    warm: whether the run takes over warm heads, as beside `yatt up`; its Prefect server is then not struck.
    """
    with bed(folder) as (home, server, environment), ExitStack() as stack:
        owner = None
        given: Mapping[str, str] = environment
        if warm:
            given, owner = stack.enter_context(warm_heads(home, folder / "shared", environment))
        began = time.monotonic()
        with started(home, spec, given, owner) as struck:
            record = Chaos(struck, server, seed, prefect_seconds).run(strikes, seconds)
            minutes = (time.monotonic() - began) / 60
            struck.stop()
            reached = struck.watch.iteration()
            counts = struck.watch.commits()
        say(f"{len(record.faults)} faults in {minutes:.1f} min; now {reached} iterations without any")
        quiet = undisturbed(home, spec, environment, reached)
        told = figures(home, struck, quiet, record, folder / "failpoints" / "published", counts)
    return told | {"seed": seed, "minutes": round(minutes, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--faults", type=int, default=210)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--warm", action="store_true", help="the run takes over warm heads, whose owner is struck too")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    spec = load_spec(arguments.spec, arguments.overrides)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    plan = WARM if arguments.warm else PLAN
    strikes = schedule(arguments.seed, arguments.faults, ahead(plan) if spec.asynchrony.lag else plan)
    told = chaos(
        folder=folder,
        spec=spec,
        strikes=strikes,
        seed=arguments.seed,
        seconds=60 * arguments.minutes,
        warm=arguments.warm,
    )
    if told["digests_equal"] and not told["stuck"] and not told["unasked_exits"]:
        shutil.rmtree(folder)
    else:
        say(f"kept for inspection: {folder}")
    if arguments.output:
        arguments.output.write_text(json.dumps(told, indent=1) + "\n")
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
