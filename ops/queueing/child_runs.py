"""Drives the runs of a sweep, a soup or a pipeline through the queue, so that they obey its limits and share its devices.

Consumes goals: runs of a ledger, and the iterations that they are to commit. Each goal is an entry of the queue until then.
While no scheduler serves the queue, the command schedules it itself; without a pools file there is one pool, of this machine's
devices. A run that another command drives is waited for. Ctrl-C takes the runs out of the queue, which stops their drivers in
order, and waits for them; the second one leaves them to themselves. A command that was killed leaves its entries behind, and
the next one goes on with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from db.core.errors import Fenced, LeaseHeld, QueueRefused
from db.write.queueing import ENDED, REMOVE, SPEC, WAITING, Submission
from flows.driver.attachment import attached
from flows.members.driving import ended_early, reached
from flows.queueing.pools import PoolsSpec, parse_pools
from flows.queueing.pools_file import pools_file, read_pools
from flows.queueing.scheduler import Scheduler
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.presentation.output import console, message
from ops.queries.run_list import DRIVEN, driver_of
from ops.queueing.processes import LOG, CommandRuns, DriverProcesses
from ops.queueing.submitting import DEFAULT_PROJECT
from ops.terminal.people import acting_name, identity
from yatt_core.cluster.gpus import local_gpus
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, InfrastructureError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.members.driving import Goals
    from ops.terminal.clusters import Clusters
    from yatt_core.spec import RunSpec

POLL_SECONDS = 0.3
MACHINE = "machine"
Show = Callable[[str, int, int], None]
"""Shows a run's target and iteration."""


def machine_pools(at_once: int | None) -> PoolsSpec:
    """Returns the pool of a home without a pools file: this machine's GPUs, or else its cores.

    On a Ray cluster of one's own, whose size is not known here, it holds as many runs as are asked for, or one.

    Raises `ConfigurationError` if more runs are to be driven at once than there are GPUs.
    """
    pool: dict[str, object]
    if attached():
        pool = {"devices": at_once or 1}
    elif gpus := len(local_gpus()):
        if (at_once or 1) > gpus:
            raise ConfigurationError(
                f"--at-once {at_once}: this machine has {many(gpus, 'GPU')}; for runs that share one, declare a pool with a "
                "number of devices in pools.yaml"
            )
        pool = {"gpus": list(range(gpus))}
    else:
        pool = {"devices": max(len(os.sched_getaffinity(0)), at_once or 1)}
    return parse_pools({"pools": {MACHINE: pool}}, "the pools of this machine")


class ChildRuns:
    """Drives runs of a home; `flows.members.driving.Drives`.

    clusters: what drivers are started on while this command schedules.
    at_once: most runs to have in the queue at a time; None for all.
    """

    def __init__(self, home: Home, ledger: Ledger, clusters: Clusters, at_once: int | None) -> None:
        self._home = home
        self._ledger = ledger
        self._clusters = clusters
        self._at_once = at_once

    def __call__(self, goals: Goals) -> None:
        """Drives runs until no goals are left.

        Raises `InfrastructureError` for runs that ended too early, once the others have ended, `ConfigurationError` if the
        pools file is bad or a run could never have its devices, and `KeyboardInterrupt`.
        """
        work = _Work(home=self._home, ledger=self._ledger, goals=goals, clusters=self._clusters, at_once=self._at_once)
        with work.scheduling(), _bars() as bars:
            try:
                work.until_ended(bars)
            except KeyboardInterrupt:
                message("asking the drivers to stop after their current iterations; press Ctrl-C again to leave them")
                work.stop()
                work.until_ended(bars)
                raise
        if work.failed:
            raise InfrastructureError("\n".join(work.failed))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A run that is to reach an iteration.

    queued: False if another command drives the run outside of the queue; it is then waited for.
    """

    run: str
    until: int
    queued: bool


class _Work:
    """The runs of one call.

    failed: what became of the runs that ended too early; after the first one, those that wait are taken out of the queue.
    """

    def __init__(self, home: Home, ledger: Ledger, goals: Goals, clusters: Clusters, at_once: int | None) -> None:
        self._home = home
        self._ledger = ledger
        self._goals = goals
        self._at_once = at_once
        self._wanted: dict[str, _Wanted] = {}
        self._taken_out: set[str] = set()
        self._stopping = False
        self._undeclared = None if pools_file(home).exists() else machine_pools(at_once)
        own = CommandRuns(self._wanted, clusters, identity(), gpus=self._machine_gpus())
        self._scheduler = _StandIn(home, ledger, DriverProcesses(home, own), self._undeclared)
        self._said: dict[str, str] = {}
        self.failed: list[str] = []

    @contextmanager
    def scheduling(self) -> Iterator[None]:
        """Gives the scheduler's lease back at the end, if this command has it."""
        try:
            yield
        finally:
            self._scheduler.resign()

    def until_ended(self, show: Show) -> None:
        """Submits and watches runs until none is left."""
        self._submit_waiting({})
        while self._wanted:
            self._scheduler.round()
            ended = [run for run, wanted in self._wanted.items() if self._has_ended(wanted, show)]
            if ended:
                self._submit_waiting({run: self._wanted.pop(run) for run in ended})
            else:
                time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Takes all runs out of the queue, and submits no others."""
        self._stopping = True
        for wanted in self._wanted.values():
            self._take_out(wanted)

    def _submit_waiting(self, ended: Mapping[str, _Wanted]) -> None:
        """Submits the goals that are not in the queue yet.

        ended: runs that have left it; a goal that one of them did not reach has failed.
        """
        goals = {} if self._stopping else self._goals()
        short = [
            each
            for run, each in ended.items()
            if run in goals and run not in self._taken_out and each.queued and reached(self._ledger, run) < each.until
        ]
        self.failed += [self._failure(each) for each in short]
        if self.failed:
            for wanted in self._wanted.values():
                entry = self._ledger.queue.entry(wanted.run)
                if entry is not None and entry.state == WAITING:
                    self._take_out(wanted)
            return
        waiting = [run for run in goals if run not in self._wanted]
        left = len(waiting) if self._at_once is None else self._at_once - len(self._wanted)
        for run in waiting[:left]:
            self._wanted[run] = self._submit(run, goals[run])

    def _submit(self, run: str, until: int) -> _Wanted:
        entry = self._ledger.queue.entry(run)
        if entry is not None and entry.ended_at is None:
            left = _Wanted(run, until, queued=True)
            pools = read_pools(self._home, self._undeclared).pools
            if entry.state == WAITING and pools.keys().isdisjoint(entry.pools.split(",")):
                self._take_out(left)  # it would wait for ever; once it is out, it is submitted anew
            return left
        if self._is_driven(run):
            return _Wanted(run, until, queued=False)
        self._taken_out.discard(run)
        spec = current_spec(self._ledger, run)
        name = acting_name()
        # Another command that goes on with the same runs may have submitted it since.
        with _unless_queued():
            self._ledger.submissions.submit(run, self._submission(spec, name, until), name)
        return _Wanted(run, until, queued=True)

    def _submission(self, spec: RunSpec, owner: str, until: int) -> Submission:
        project = spec.billing.project or DEFAULT_PROJECT
        devices = spec.devices
        pools = read_pools(self._home, self._undeclared)
        if self._undeclared is not None:
            # Ranks of a run that is larger than the machine share its devices.
            size = len(pools.pools[MACHINE].numbers)
            devices = min(devices, max(1, size // (self._at_once or 1)))
        most = {name: pools.most_devices(name, owner, project) for name in pools.pools}
        fitting = tuple(name for name, number in most.items() if devices <= number)
        if not fitting:
            raise ConfigurationError(
                f"the runs need {many(devices, 'device')} each, and {owner} can have at most {max(most.values())} of a pool "
                f"for project {project} ({pools_file(self._home)})"
            )
        return Submission(
            pools=fitting, owner=owner, project=project, priority=0, devices=devices, checkpoints=SPEC, until=until
        )

    def _has_ended(self, wanted: _Wanted, show: Show) -> bool:
        show(wanted.run, wanted.until, self._ledger.runs.find(wanted.run).iteration)
        if not wanted.queued:
            return not self._is_driven(wanted.run)
        entry = self._ledger.queue.entry(wanted.run)
        if entry is None or entry.state == ENDED:
            return True
        if entry.reason and entry.state == WAITING and self._said.get(wanted.run) != entry.reason:
            self._said[wanted.run] = entry.reason
            message(f"{wanted.run} waits in the queue: {entry.reason}")
        return False

    def _take_out(self, wanted: _Wanted) -> None:
        if not wanted.queued:
            reason = "the command that drives several runs was interrupted"
            self._ledger.runs.ask_to_stop(wanted.run, reason, by=acting_name())
            return
        self._taken_out.add(wanted.run)
        with _unless_queued():
            self._ledger.submissions.change(wanted.run, acting_name(), wanted=REMOVE)

    def _failure(self, wanted: _Wanted) -> str:
        entry = self._ledger.queue.entry(wanted.run)
        outcome = "" if entry is None or not entry.outcome else f"; it has left the queue: {entry.outcome}"
        log = self._home.run_folder(wanted.run) / LOG
        return f"{ended_early(self._ledger, wanted.run, wanted.until)}{outcome}; the output of its driver is in {log}"

    def _is_driven(self, run: str) -> bool:
        return driver_of(self._ledger.overview.line(run)) == DRIVEN

    def _machine_gpus(self) -> tuple[int, ...]:
        pools = None if self._undeclared is None else self._undeclared.pools[MACHINE]
        return () if pools is None or pools.gpus is None else pools.numbers


class _StandIn:
    """Schedules the queue in this process, whenever nobody else does."""

    def __init__(self, home: Home, ledger: Ledger, drivers: DriverProcesses, undeclared: PoolsSpec | None) -> None:
        self._scheduler = Scheduler(home, ledger, drivers, undeclared)
        self._leads = False

    def round(self) -> None:
        """Schedules once, unless another scheduler serves the queue."""
        try:
            if not self._leads:
                self._scheduler.lead()
                self._leads = True
            self._scheduler.round()
        except (LeaseHeld, Fenced):
            self._leads = False

    def resign(self) -> None:
        """Gives the lease back, if this process has it."""
        if self._leads:
            try:
                self._scheduler.resign()
            except Fenced:
                self._leads = False


@contextmanager
def _unless_queued() -> Iterator[None]:
    """Passes over a change of the queue that somebody else has made meanwhile."""
    try:
        yield
    except QueueRefused:
        return


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
