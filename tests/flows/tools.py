"""Drives runs in separate processes, which a test may kill, and reads what they left in the ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.results import RunResults, run_results
from tests.recovery.nursery import Incarnation, Nursery
from tests.recovery.parts import kill, living_actors
from tests.services import ROOT
from yatt_core.spec import load_spec

SECONDS = 300


@dataclass
class Driver:
    """Creates runs in a home folder and drives them."""

    folder: Path
    nursery: Nursery
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Home:
        return Home(self.folder)

    def create(self, spec: str, *overrides: str) -> str:
        from flows.run.creation import create_run

        return create_run(self.home, load_spec(ROOT / "tests" / "specs" / spec, overrides))

    def start(self, run: str, *arguments: str) -> Incarnation:
        return self.nursery.start(self.folder, run, None, self.environment, arguments)

    def drive(self, run: str, *arguments: str, expect: int = 0) -> str:
        """Runs a driver to its end and returns its output."""
        process = self.start(run, *arguments)
        code = process.wait(SECONDS)
        assert code == expect, f"exit code {code}, expected {expect}:\n{process.output}"
        return process.output

    def drive_until_killed(self, run: str, moment: str) -> None:
        """Runs a driver that kills itself in the middle of PHASE:ITERATION or PHASE:ITERATION:WAVE."""
        self.drive(run, "--kill", moment, expect=-signal.SIGKILL)

    def end_actors(self, run: str) -> None:
        """Kills the actors that a killed driver left, so that the next one must restore and replay."""
        for pid in living_actors(self.home.run_folder(run)).values():
            kill(pid)

    def ledger(self) -> Ledger:
        return Ledger.open(self.home.ledger)

    def results(self, run: str) -> RunResults:
        with self.ledger() as ledger:
            return run_results(ledger, run)

    def attempts(self, run: str, iteration: int) -> list[Any]:
        with self.ledger() as ledger:
            return ledger.phases.attempts(run, 0, iteration)


def audit_of_live_weights(driver: Driver, run: str, services: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Runs `yatt audit weights`; returns its exit code and its report.

    services: environment of the services to which the run's drivers attach.
    """
    words = ["--home", str(driver.folder), "audit", "weights", run, "-o", "json"]
    command = [sys.executable, "-m", "ops.cli.main", *words]
    environment = {**os.environ, **services}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def same_result(one: RunResults, other: RunResults) -> bool:
    """Returns whether weights, experience and result metrics are the same bit for bit."""
    keys = ("weights_digest", "experience_digest", "metrics_digest")
    return all(getattr(one, key) and getattr(one, key) == getattr(other, key) for key in keys)
