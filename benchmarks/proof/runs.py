"""Drives the two runs of a proof with `yatt train` and `yatt resume`, and kills one of them during its phases.

Signals go only to processes that were identified before, never to a name.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.proof.kills import Kill, Killed, Moment, Scope, draw_moment
from benchmarks.proof.screen import Screen
from db.ledger import Ledger
from db.write.phases import DISPATCHED, AttemptRow
from flows.run.home import Home
from yatt_core.errors import ExitCode, InfrastructureError
from yatt_core.supervisor.client import current_state, stop_supervisor
from yatt_core.supervisor.process import ProcessIdentity, send_signal, session_members
from yatt_core.supervisor.state import SupervisorFiles

POLL_SECONDS = 0.05
PHASE_POLL_SECONDS = 0.001
RUN_SECONDS = 120.0
END_SECONDS = 60.0
SWEEP_SECONDS = 10.0
USUAL_OVER = 10
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class Proved:
    """A run that reached its target.

    results: as printed by `yatt show -o json`.
    audit: as printed by `yatt audit verify -o json`.
    replayed: the number of updates that drivers computed again from sealed experience.
    seconds: from its first command to its end.
    """

    results: dict[str, Any]
    audit: dict[str, Any]
    kills: Sequence[Killed]
    replayed: int
    seconds: float


@dataclass(slots=True)
class RunUnderProof:
    """A run and the process that drives it. label: its name on the screen."""

    home: Home
    ledger: Ledger
    label: str
    iterations: int
    screen: Screen
    kills: list[Killed] = field(default_factory=list)
    name: str = ""
    _driver: subprocess.Popen[bytes] | None = None
    _drivers: int = 0

    # -- the driver ---------------------------------------------------------------------------------------------------

    def train(self, spec: Path, overrides: Sequence[str]) -> None:
        """Starts the run, and waits until it is in the ledger."""
        before = {line.run.id for line in self.ledger.overview.runs()}
        self._start("train", str(spec), *(part for override in overrides for part in ("--set", override)))
        deadline = time.monotonic() + RUN_SECONDS
        while not self.name and time.monotonic() < deadline:
            self._require_driver()
            self.name = next((line.run.id for line in self.ledger.overview.runs() if line.run.id not in before), "")
            time.sleep(POLL_SECONDS)
        if not self.name:
            raise InfrastructureError(f"{self.label}: no run after {RUN_SECONDS:g} s; see {self._log}")
        self.screen.begin(self.label, self.iterations)

    def resume(self) -> None:
        """Starts a driver that continues from where the killed one stopped."""
        self._start("resume", self.name)

    def _start(self, *arguments: str) -> None:
        self._drivers += 1
        with self._log.open("wb") as log:
            command = yatt(self.home, *arguments, "-o", "json")
            self._driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def _log(self) -> Path:
        return self.home.folder / f"{self.label}-driver-{self._drivers}.log"

    def _require_driver(self) -> subprocess.Popen[bytes]:
        """Returns the running driver. Raises `InfrastructureError` if it exited on its own."""
        driver = self._driver
        if driver is None or driver.poll() is not None:
            code = None if driver is None else driver.returncode
            said = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
            raise InfrastructureError(f"{self.label}: its driver ended early with {code}:\n{said}")
        return driver

    def await_end(self) -> None:
        """Waits until the driver has reached the target. Raises `InfrastructureError` if it fails."""
        while self._driver is not None and self._driver.poll() is None:
            self.screen.show(self.committed(), self._log)
            time.sleep(4 * POLL_SECONDS)
        if self._driver is None or self._driver.returncode != ExitCode.OK:
            self._require_driver()
        self.screen.end()

    def close(self) -> None:
        """Ends the rest of the run, in order if possible."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.terminate()
            try:
                self._driver.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._driver.kill()
                self._driver.wait()
        if self.name:
            stop_supervisor(self.home.run_folder(self.name))

    # -- what the ledger says ------------------------------------------------------------------------------------------

    def committed(self) -> int:
        """Returns the last committed iteration, -1 before the first."""
        return self.ledger.runs.find(self.name).iteration

    def _attempts(self, iteration: int, phase: str) -> list[AttemptRow]:
        return [row for row in self.ledger.phases.attempts(self.name, 0, iteration) if row.phase == phase]

    def replayed(self) -> int:
        """Counts the updates that recoveries replayed."""
        attempts = self.ledger.overview.history(self.name).attempts
        return sum(int(row.receipt.get("replayed", 0)) for row in attempts if row.phase == "recover" and row.receipt)

    # -- kills ---------------------------------------------------------------------------------------------------------

    def kill_in(self, kill: Kill, source: random.Random) -> None:
        """Draws moments until a kill has hit its phase, and resumes the run after each kill.

        Raises `InfrastructureError` if no iteration is left.
        """
        hit = False
        while not hit:
            moment = draw_moment(source, kill, self.committed(), self.iterations)
            if moment is None:
                raise InfrastructureError(f"{self.label}: no iteration is left for a kill in {kill.phase}")
            place = f"{kill.phase} of iteration {moment.iteration}"
            self.screen.say(f"drawn: {place}, at {moment.fraction:.1%} of its usual duration")
            killed = self._strike(kill, moment)
            if killed is None:
                self.screen.say(f"{place} was over before that moment came: nothing was killed, drawing again")
                continue
            self.kills.append(killed)
            hit = killed.hit
            self.screen.say(
                f"SIGKILL to {kill.scope} ({killed.processes}), {1000 * killed.seconds_in:.0f} ms into {place}"
            )
            found = f"attempt {killed.attempt} is dispatched and has not ended"
            missed = f"attempt {killed.attempt} had just ended, so the kill fell between two phases: drawing again"
            self.screen.say(f"the ledger says: {found if hit else missed}; last commit: {self.committed()}")
            self.screen.say(f"yatt resume {self.name}")
            self.resume()

    def _strike(self, kill: Kill, moment: Moment) -> Killed | None:
        """Waits for the moment and kills; returns None if the phase ended before it."""
        self._await_iteration(moment.iteration - 1)
        members = self._members() if kill.scope is Scope.EVERYTHING else []
        attempt = self._await_open(moment.iteration, kill.phase)
        if attempt is None or attempt.dispatched_at is None:
            return None
        usual = statistics.median(self.ledger.phases.history(self.name, kill.phase, USUAL_OVER))
        time.sleep(max(0.0, attempt.dispatched_at / 1000 + moment.fraction * usual - time.time()))
        if not self._is_open(attempt):
            return None
        seconds_in = time.time() - attempt.dispatched_at / 1000
        processes = self._kill(kill.scope, members)
        hit = self._is_open(attempt)
        return Killed(
            phase=kill.phase,
            scope=kill.scope,
            iteration=moment.iteration,
            attempt=attempt.number,
            hit=hit,
            fraction=moment.fraction,
            usual_seconds=usual,
            seconds_in=seconds_in,
            processes=processes,
        )

    def _await_iteration(self, iteration: int) -> None:
        while (committed := self.committed()) < iteration:
            self._require_driver()
            self.screen.show(committed, self._log)
            time.sleep(POLL_SECONDS / 2)

    def _await_open(self, iteration: int, phase: str) -> AttemptRow | None:
        """Waits for an attempt at the phase to be dispatched; returns None if the iteration is committed first."""
        while True:
            for row in self._attempts(iteration, phase):
                if row.state == DISPATCHED:
                    return row
            if self.committed() >= iteration:
                return None
            self._require_driver()
            time.sleep(PHASE_POLL_SECONDS)

    def _is_open(self, attempt: AttemptRow) -> bool:
        """Returns True if the ledger shows the attempt as dispatched and not ended."""
        rows = self._attempts(attempt.iteration, attempt.phase)
        return any(
            (row.planned_at, row.number, row.ended_at) == (attempt.planned_at, attempt.number, None) for row in rows
        )

    def _members(self) -> list[ProcessIdentity]:
        """Returns the run's processes except its driver: first the supervisor, then everything that it started."""
        folder = self.home.run_folder(self.name)
        state = current_state(folder)
        return [*([state.identity] if state else []), *session_members([], SupervisorFiles.of(folder).mark)]

    def _kill(self, scope: Scope, members: Sequence[ProcessIdentity]) -> int:
        """Sends SIGKILL to the driver, then to the rest if the scope asks for it; returns how many were killed."""
        driver = self._require_driver()
        driver.kill()
        processes = 1 + sum(send_signal(member, signal.SIGKILL) for member in members)
        driver.wait()
        if scope is Scope.EVERYTHING:
            deadline = time.monotonic() + SWEEP_SECONDS
            while (left := self._members()) and time.monotonic() < deadline:
                processes += sum(send_signal(member, signal.SIGKILL) for member in left)
                time.sleep(POLL_SECONDS)
            if left:
                raise InfrastructureError(f"{self.label}: {len(left)} processes are left after SIGKILL: {left[0]}")
        return processes


def yatt(home: Home, *arguments: str) -> list[str]:
    """Returns the command line of a `yatt` command on a home folder."""
    return [sys.executable, "-m", "ops.cli.main", "--home", str(home.folder), *arguments]


def answer(home: Home, *arguments: str) -> dict[str, Any]:
    """Returns the JSON output of a `yatt` command that exits with 0 or 1. Raises `InfrastructureError` for any
    other code.
    """
    finished = subprocess.run(yatt(home, *arguments, "-o", "json"), capture_output=True, text=True, check=False)
    lines = finished.stdout.strip().splitlines()
    if finished.returncode not in (ExitCode.OK, ExitCode.FAILURE) or not lines:
        raise InfrastructureError(f"yatt {' '.join(arguments)} ended with {finished.returncode}:\n{finished.stderr}")
    told: dict[str, Any] = json.loads(lines[-1])
    return told


@contextmanager
def opened(home: Home, ledger: Ledger, label: str, iterations: int, screen: Screen) -> Iterator[RunUnderProof]:
    """Yields a run to prove, and leaves none of its processes behind."""
    run = RunUnderProof(home=home, ledger=ledger, label=label, iterations=iterations, screen=screen)
    try:
        yield run
    finally:
        run.close()


def prove_run(
    run: RunUnderProof, spec: Path, overrides: Sequence[str], kills: Sequence[Kill], source: random.Random
) -> Proved:
    """Drives a run from its start to its target through all kills, then audits it."""
    began = time.monotonic()
    run.screen.say(f"{run.label}: yatt train {spec}" + "".join(f" --set {override}" for override in overrides))
    run.train(spec, overrides)
    for kill in kills:
        run.kill_in(kill, source)
    run.await_end()
    seconds = time.monotonic() - began
    run.screen.say(f"{run.label}: done in {seconds:.0f} s; yatt audit verify {run.name}")
    results = answer(run.home, "show", run.name)
    audit = answer(run.home, "audit", "verify", run.name)
    return Proved(results=results, audit=audit, kills=tuple(run.kills), replayed=run.replayed(), seconds=seconds)
