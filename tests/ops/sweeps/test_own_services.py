"""A sweep whose trials take turns at one Ray head: whatever is killed, the head, the command or a driver, it decides the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.lease import DRIVER
from tests.carrier import SECONDS, Carrier
from tests.ops.sweeps.test_real_sweep import OPTIONS, chain
from yatt_core.supervisor.client import current_state

SHARED = ("YATT_RAY_ADDRESS", "PREFECT_API_URL", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""What would name services that exist already."""


def head_of(home: Home) -> int | None:
    """Returns the process id of the only cluster's head, if there is one now."""
    if not home.clusters.exists():
        return None
    for folder in home.clusters.iterdir():
        if folder.is_dir() and (state := current_state(folder)) is not None:
            head = state.service("ray").identity
            return None if head is None else head.pid
    return None


def driven_now(home: Home) -> set[str]:
    """Returns the runs that have a driver."""
    with Ledger.open(home.ledger, migrate=False) as ledger:
        return {run for run, holder in ledger.leases.holders().items() if holder.text.startswith(DRIVER)}


class Watch:
    """Watches a sweep on services of its own.

    runs: the runs that were driven while a head with that process id was up.
    """

    def __init__(self, carrier: Carrier, process: subprocess.Popen[str]) -> None:
        self._carrier = carrier
        self._process = process
        self.runs: dict[int, set[str]] = {}

    def until(self, reached: Callable[[], bool]) -> None:
        """Looks until something is reached or the command has ended."""
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            head = head_of(self._carrier.home)
            if head is not None:
                self.runs.setdefault(head, set()).update(driven_now(self._carrier.home))
                if reached():
                    return
            time.sleep(0.05)


@pytest.mark.verify
@pytest.mark.timeout(3 * SECONDS)
def test_trials_take_turns_at_one_head_and_survive_what_is_killed(
    tmp_path: Path, service_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Carrier("sweep", tmp_path / "plain", service_environment)
    shown = plain.finish(*OPTIONS)
    for name in SHARED:
        monkeypatch.delenv(name, raising=False)
    own = {name: value for name, value in service_environment.items() if name not in SHARED}
    struck = Carrier("sweep", tmp_path / "struck", own)
    home = struck.home
    sweep = shown["sweep"]

    def begun() -> set[str]:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            return {run.id for run in ledger.runs.list() if run.id != sweep and run.iteration > 0}

    process = struck.start(*OPTIONS, "--at-once", "1")
    watch = Watch(struck, process)
    watch.until(lambda: bool(begun()))
    head = head_of(home)
    assert head is not None
    os.kill(head, signal.SIGKILL)
    watch.until(lambda: len(begun()) > 1)
    assert any(len(runs) > 1 for runs in watch.runs.values()), "trials took turns at one head"
    process.kill()
    process.communicate()
    struck.kill_a_driver()
    process = struck.start("resume", sweep)
    Watch(struck, process).until(lambda: False)
    out, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert json.loads(out) == shown
    assert chain(home, sweep) == chain(plain.home, sweep)
    assert not list(home.folder.glob("*/supervisor/ray")), "no run had a head of its own"
    assert not [folder for folder in home.clusters.iterdir() if folder.is_dir()]
