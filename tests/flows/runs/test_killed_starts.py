"""Services, actors and drivers killed at random moments of a start: a driver that lives needs no help."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.results import RunResults, run_results
from tests.flows.runs.test_own_services import yatt
from tests.flows.tools import same_result
from tests.recovery.parts import living_actors
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.supervisor.client import current_state

SPEC = ROOT / "tests" / "specs" / "virtual.yaml"
START_SECONDS = 12.0
"""Length of an undisturbed start; blows fall within it."""
SECONDS = 400.0
BLOWS = 20
IN_A_ROW = 4
SERVICES = ("ray", "prefect", "supervisor", "actor")
OVERRIDES = ("iterations=30", "rollout.engine.base_seconds=0.05", "recovery.budgets.infrastructure=8")


def target(home: Path, run: str, name: str) -> int | None:
    """Returns the pid of a service, the supervisor or one of the actors; None if there is none now."""
    folder = Home(home).run_folder(run)
    if name == "actor":
        actors = sorted(living_actors(folder).values())
        return actors[0] if actors else None
    state = current_state(folder)
    if state is None:
        return None
    if name == "supervisor":
        return state.identity.pid
    identity = state.service(name).identity
    return None if identity is None else identity.pid


def blows(noise: random.Random) -> Iterator[list[tuple[float, str]]]:
    """Yields the blows of each start, (seconds after the last blow, target): one each, once four in a row."""
    left = BLOWS
    several = noise.randrange(3, 8)
    start = 0
    while left:
        count = IN_A_ROW if start == several else 1
        given = [(noise.uniform(0.0, START_SECONDS / count), noise.choice(SERVICES)) for _ in range(count)]
        if count == 1 and noise.random() < 0.3:
            given = [(given[0][0], "driver")]
        yield given
        left = max(0, left - count)
        start = start + 1


def strike(process: subprocess.Popen[str], given: list[tuple[float, str]], find: Callable[[str], int | None]) -> None:
    """Kills the targets in turn; waits for one that is not there yet."""
    for seconds, name in given:
        time.sleep(seconds)
        pid = process.pid if name == "driver" else None
        deadline = time.monotonic() + 60.0
        while pid is None and process.poll() is None and time.monotonic() < deadline:
            pid = find(name)
            time.sleep(0.05)
        if pid is not None and process.poll() is None:
            sys.stderr.write(f"kill {name} {pid}\n")
            os.kill(pid, signal.SIGKILL)


def results(home: Path, run: str) -> RunResults:
    with Ledger.open(Home(home).ledger) as ledger:
        return run_results(ledger, run)


def exists(home: Path, run: str) -> bool:
    with Ledger.open(Home(home).ledger) as ledger:
        return any(row.id == run for row in ledger.runs.list())


def iteration(home: Path, run: str) -> int:
    with Ledger.open(Home(home).ledger) as ledger:
        return int(ledger.runs.find(run).iteration)


@pytest.mark.verify
@pytest.mark.timeout(2400)
def test_twenty_kills_in_starts_change_nothing(tmp_path: Path) -> None:
    seed = int(time.time())
    sys.stderr.write(f"seed {seed}\n")
    noise = random.Random(seed)
    home = tmp_path / "runs"
    overrides = [word for override in OVERRIDES for word in ("--set", override)]
    quiet = yatt(home, "train", str(SPEC), *overrides)
    _, errors = quiet.communicate(timeout=SECONDS)
    assert quiet.returncode == 0, errors
    process = yatt(home, "train", str(SPEC), *overrides)
    run = "virtual-2"
    wait_until(lambda: exists(home, run), SECONDS)
    for given in blows(noise):
        strike(process, given, lambda name: target(home, run, name))
        if process.poll() is None and given[-1][1] != "driver":
            settle(process, home, run)
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
        lives = given[-1][1] != "driver"
        assert process.returncode == (0 if lives else -signal.SIGKILL), f"{given}: {errors}"
        process = yatt(home, "resume", run)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert same_result(results(home, run), results(home, "virtual-1"))


def settle(process: subprocess.Popen[str], home: Path, run: str) -> None:
    """Waits until the driver has committed an iteration, so that its start is over, or has ended."""
    before = iteration(home, run)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline and iteration(home, run) <= before:
        time.sleep(0.1)
