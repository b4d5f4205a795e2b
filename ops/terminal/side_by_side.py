"""Drives several runs, each in a background process, as many at a time as the devices allow.

Consumes goals: runs of a ledger, and the iterations that they are to commit. A run that another process drives is waited
for. Ctrl-C asks all drivers to stop in order and waits for them; the second one leaves them to themselves. Runs that are driven
one after another in the same place share a Ray head and a Prefect server, which are started once.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from flows.driver.attachment import attached
from flows.run.home import Home
from ops.driver_process import open_log, start_driver_process
from ops.presentation.output import console, message
from ops.terminal.detached import LOG
from ops.terminal.people import acting_name, identity
from yatt_core.cluster.gpus import local_gpus
from yatt_core.errors import InfrastructureError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.members.driving import Goals
    from flows.run.shared_cluster import SharedCluster
    from yatt_core.spec import RunSpec

POLL_SECONDS = 0.3
Show = Callable[[str, int, int], None]
"""Shows a run's target and iteration."""


def runs_at_once(spec: RunSpec) -> tuple[int, list[str | None]]:
    """Returns how many runs of a spec this machine's devices hold, and the GPUs of each place; None for all, or none.

    On a Ray cluster of one's own, whose size is not known here, it is one.
    """
    if attached():
        return 1, [None]
    gpus = len(local_gpus())
    if gpus:
        places = max(1, gpus // spec.devices)
        numbers = [range(place * spec.devices, (place + 1) * spec.devices) for place in range(places)]
        return places, [",".join(map(str, own)) if places > 1 else None for own in numbers]
    places = max(1, len(os.sched_getaffinity(0)) // spec.devices)
    return places, [None] * places


def places_of(spec: RunSpec, at_once: int | None) -> list[str | None]:
    """Returns the GPUs of each place for a run; by default there are as many places as the devices hold runs."""
    count, devices = runs_at_once(spec)
    if at_once is None or at_once == count:
        return devices
    return devices[:at_once] if at_once < count else [None] * at_once


class Clusters:
    """The clusters of a command, one for each place at which it drives runs; a context manager that ends them.

    A head sees the GPUs of the driver that started it, so a place with other GPUs has another cluster. There are none if the
    environment names a Ray cluster that exists already.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._by_place: dict[tuple[int, str | None], SharedCluster] = {}
        self._held = ExitStack()

    def __enter__(self) -> Clusters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever lends a cluster must know that drivers may have been left to themselves.
        self._held.__exit__(kind, error, trace)

    def at(self, place: int, gpus: str | None) -> SharedCluster | None:
        """Returns the cluster of a place, which is taken when it is first asked for; None if there are none.

        A place with all GPUs borrows a warm one of the service group if that has one.

        gpus: those of the place; None for all.
        """
        if attached():
            return None
        if (place, gpus) not in self._by_place:
            self._by_place[place, gpus] = self._held.enter_context(_cluster_of(self._home, gpus))
        return self._by_place[place, gpus]


@contextmanager
def _cluster_of(home: Home, gpus: str | None) -> Iterator[SharedCluster]:
    """Provides a cluster for the drivers of one place."""
    from flows.run.lending import borrowed_for_command
    from flows.run.shared_cluster import taken_cluster

    with ExitStack() as stack:
        lent = None if gpus is not None else stack.enter_context(borrowed_for_command(home))
        yield stack.enter_context(taken_cluster(home)) if lent is None else lent


class SideBySide:
    """Drives runs of a home; `flows.members.driving.Drives`.

    places: for each run that may be driven at a time, the GPUs that it gets; None for all.
    """

    def __init__(self, home: Home, ledger: Ledger, places: Sequence[str | None], clusters: Clusters) -> None:
        self._home = home
        self._ledger = ledger
        self._places = tuple(places)
        self._clusters = clusters

    def __call__(self, goals: Goals) -> None:
        """Drives runs until no goals are left.

        Raises `InfrastructureError` for runs that ended too early, once the others have ended, and `KeyboardInterrupt`.
        """
        work = _Work(
            home=self._home,
            ledger=self._ledger,
            goals=goals,
            places=dict(enumerate(self._places)),
            clusters=self._clusters,
        )
        with _bars() as bars:
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
    """The drivers of one call, by place.

    failed: what became of the runs that ended too early; after the first one, no other run is started.
    """

    def __init__(
        self, home: Home, ledger: Ledger, goals: Goals, places: dict[int, str | None], clusters: Clusters
    ) -> None:
        self._home = home
        self._ledger = ledger
        self._goals = goals
        self._places = places
        self._clusters = clusters
        self._driven: dict[int, _Driven] = {}
        self._stopping = False
        self.failed: list[str] = []

    def until_ended(self, show: Show) -> None:
        """Starts and watches drivers until none is left."""
        self._start_waiting({})
        while self._driven:
            ended = [place for place, driven in self._driven.items() if self._has_ended(driven, show)]
            if ended:
                self._start_waiting({each.run: each for each in map(self._driven.pop, ended)})
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Asks all drivers to stop, and starts no others."""
        self._stopping = True
        for driven in self._driven.values():
            reason = "the command that drives several runs was interrupted"
            self._ledger.runs.ask_to_stop(driven.run, reason, by=acting_name())

    def _start_waiting(self, ended: Mapping[str, _Driven]) -> None:
        """Starts drivers for the goals that have none, as long as there are places.

        ended: drivers that have ended; a goal that one of them did not reach has failed.
        """
        goals = {} if self._stopping else self._goals()
        short = [each for run, each in ended.items() if run in goals and each.is_short(self._ledger)]
        self.failed += [each.failure(self._home, self._ledger) for each in short]
        driven = {each.run for each in self._driven.values()}
        waiting = [] if self.failed else [run for run in goals if run not in driven]
        for place in list(self._places.keys() - self._driven.keys())[: len(waiting)]:
            run = waiting.pop(0)
            self._driven[place] = self._start(place, run, goals[run])

    def _start(self, place: int, run: str, until: int) -> _Driven:
        if self._is_held(run):
            return _Driven(run, until, None)
        gpus = self._places[place]
        cluster = self._clusters.at(place, gpus)
        with open_log(self._home, run, LOG) as log:
            process = start_driver_process(
                home=self._home,
                run=run,
                log=log,
                accept_drift=False,
                until=until,
                devices=gpus,
                identity=identity(),
                cluster=cluster,
            )
        return _Driven(run, until, process, cluster)

    def _has_ended(self, driven: _Driven, show: Show) -> bool:
        show(driven.run, driven.until, self._ledger.runs.find(driven.run).iteration)
        if driven.process is None:
            return not self._is_held(driven.run)
        if driven.process.poll() is None:
            return False
        if driven.process.returncode and driven.cluster is not None:
            driven.cluster.ended_badly()
        return True

    def _is_held(self, run: str) -> bool:
        from ops.queries.run_list import DRIVEN, driver_of

        return driver_of(self._ledger.overview.line(run)) == DRIVEN


@dataclass(frozen=True)
class _Driven:
    """A run that is driven to an iteration.

    process: its driver; None if another command drives the run, which is then waited for.
    cluster: what the driver uses; None for services of its own.
    """

    run: str
    until: int
    process: subprocess.Popen[bytes] | None
    cluster: SharedCluster | None = None

    def is_short(self, ledger: Ledger) -> bool:
        """Returns True if a driver of our own has ended before the iteration was reached."""
        from flows.members.driving import reached

        return self.process is not None and reached(ledger, self.run) < self.until

    def failure(self, home: Home, ledger: Ledger) -> str:
        from flows.members.driving import ended_early

        code = self.process.returncode if self.process else None
        log = home.run_folder(self.run) / LOG
        said = ended_early(ledger, self.run, self.until)
        others = f", the logs of its services in {self.cluster.folder / 'logs'}" if self.cluster else ""
        return f"{said}; its driver ended with exit code {code}, and its output is in {log}{others}"


@contextmanager
def _bars() -> Iterator[Show]:
    """Shows a progress bar for each run, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(run: str, until: int, iteration: int) -> None:
            if run not in tasks:
                tasks[run] = bars.add_task(run)
            bars.update(tasks[run], total=until or 1, completed=max(0, iteration))

        yield show
