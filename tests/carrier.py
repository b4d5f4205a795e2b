"""Commands that drive several runs, such as `yatt soup` and `yatt sweep`, as processes that a test may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from db.core.errors import LedgerVersionError
from db.ledger import Ledger
from flows.run.home import Home
from tests.services import ROOT

SECONDS = 900.0


class Carrier:
    """Runs one command of the program in a home of its own."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self.home = Home(folder)
        self._environment = {**os.environ, **environment}

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "ops.cli.main", "--home", str(self.home.folder), self._command]
        return subprocess.Popen(
            [*program, *words, "-o", "json"],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *words: str) -> dict[str, Any]:
        process = self.start(*words)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    def kill_when(self, process: subprocess.Popen[str], reached: Callable[[Ledger], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self.home.folder.joinpath("ledger.db").exists():
                # The command may still be creating the ledger's tables.
                with suppress(LedgerVersionError), Ledger.open(self.home.ledger, migrate=False) as ledger:
                    if reached(ledger):
                        break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def kill_a_driver(self) -> None:
        """Kills whoever holds the lease of a run, if anyone does."""
        with Ledger.open(self.home.ledger, migrate=False) as ledger:
            holders = [holder.pid for holder in ledger.leases.holders().values() if holder.pid != os.getpid()]
        for pid in holders[:1]:
            os.kill(pid, signal.SIGKILL)
