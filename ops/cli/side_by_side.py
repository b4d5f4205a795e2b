"""Drives several runs to an iteration, each in a background process, as many at a time as the devices allow.

Consumes runs of a ledger. Produces their iterations; a run that another process drives already is waited for. Ctrl-C asks all
drivers to stop in order and waits for them; the second one leaves them to themselves.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ops.cli.detached import LOG
from ops.cli.people import acting_name, identity
from ops.driver_process import open_log, start_driver_process
from ops.presentation.output import console, message
from yatt_core.errors import InfrastructureError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.run.home import Home
    from yatt_core.spec import RunSpec

POLL_SECONDS = 0.3
RAY_VARIABLE = "YATT_RAY_ADDRESS"


def runs_at_once(spec: RunSpec) -> tuple[int, list[str | None]]:
    """Returns how many runs of a spec this machine's devices hold, and the GPUs of each place; None for all, or none.

    On a Ray cluster of one's own, whose size is not known here, it is one.
    """
    from yatt_core.cluster.gpus import local_gpus

    if os.environ.get(RAY_VARIABLE):
        return 1, [None]
    gpus = len(local_gpus())
    if gpus:
        places = max(1, gpus // spec.devices)
        numbers = [range(place * spec.devices, (place + 1) * spec.devices) for place in range(places)]
        return places, [",".join(map(str, own)) if places > 1 else None for own in numbers]
    places = max(1, len(os.sched_getaffinity(0)) // spec.devices)
    return places, [None] * places


class SideBySide:
    """Drives runs of a home.

    places: for each run that may be driven at a time, the GPUs that it gets; None for all.
    """

    def __init__(self, home: Home, ledger: Ledger, places: Sequence[str | None]) -> None:
        self._home, self._ledger, self._places = home, ledger, tuple(places)

    def __call__(self, runs: Sequence[str], until: int) -> None:
        """Drives runs until each has committed an iteration.

        Raises `InfrastructureError` for a driver that failed, once the others have ended, and `KeyboardInterrupt`.
        """
        work = _Work(self._home, self._ledger, until, list(runs), dict(enumerate(self._places)))
        with _bars(runs, until) as bars:
            try:
                work.until_ended(bars)
            except KeyboardInterrupt:
                message("asking the drivers to stop after their current iterations; press Ctrl-C again to leave them")
                work.stop()
                work.until_ended(bars)
                raise
        if work.failed:
            raise InfrastructureError("\n".join(work.failed))


class _Work:
    """The drivers of one call, by place."""

    def __init__(
        self, home: Home, ledger: Ledger, until: int, waiting: list[str], places: dict[int, str | None]
    ) -> None:
        self._home, self._ledger, self._until, self._waiting, self._places = home, ledger, until, waiting, places
        self._driven: dict[int, tuple[str, subprocess.Popen[bytes] | None]] = {}
        self.failed: list[str] = []

    def until_ended(self, bars: Any) -> None:
        """Starts and watches drivers until none is left."""
        while self._driven or (self._waiting and not self.failed):
            for place in self._places.keys() - self._driven.keys():
                if self._waiting and not self.failed:
                    self._start(place, self._waiting.pop(0))
            for place, (run, process) in list(self._driven.items()):
                bars(run, self._ledger.runs.find(run).iteration)
                if process is None and not self._is_held(run):
                    del self._driven[place]
                    if self._ledger.runs.find(run).iteration < self._until:
                        self._waiting.append(run)  # its driver was another's, and has ended too early
                elif process is not None and process.poll() is not None:
                    del self._driven[place]
                    self._conclude(run, process.returncode)
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Asks all drivers to stop, and starts no others."""
        self._waiting.clear()
        for run, _ in self._driven.values():
            self._ledger.runs.ask_to_stop(run, "yatt soup was interrupted", by=acting_name())

    def _start(self, place: int, run: str) -> None:
        if self._is_held(run):
            self._driven[place] = (run, None)
            return
        with open_log(self._home, run, LOG) as log:
            process = start_driver_process(self._home, run, log, False, self._until, self._places[place], identity())
        self._driven[place] = (run, process)

    def _is_held(self, run: str) -> bool:
        from ops.queries.run_list import DRIVEN, driver_of

        return driver_of(self._ledger.overview.line(run)) == DRIVEN

    def _conclude(self, run: str, code: int) -> None:
        if code:
            log = self._home.run_folder(run) / LOG
            self.failed.append(f"run {run}: its driver ended with exit code {code}; its output is in {log}")


@contextmanager
def _bars(runs: Sequence[str], until: int) -> Iterator[Any]:
    """Shows a progress bar for each run, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        tasks = {run: bars.add_task(run, total=until or 1) for run in runs}
        yield lambda run, iteration: bars.update(tasks[run], completed=max(0, iteration))
