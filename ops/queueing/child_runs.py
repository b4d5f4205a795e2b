"""Drives the runs of a sweep, a soup or a pipeline through the queue, so that they obey its limits and share its devices.

Consumes goals: runs of a ledger, and the iterations that they are to commit. Each goal is an entry of the queue until then.
While no scheduler serves the queue, the command schedules it itself; without a pools file there is one pool, of this machine's
devices. A run that another command drives is waited for. Ctrl-C takes the runs out of the queue, which stops their drivers in
order, and waits for them; the second one leaves them to themselves. A command that was killed leaves its entries behind, and
the next one goes on with them, or waits until they are out of the queue where they ask for something else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from db.core.errors import Fenced, LeaseHeld, LedgerError, QueueRefused
from db.core.holder import is_gone
from db.write.queueing import ENDED, PARKED, REMOVE, RUN, SPEC, WAITING, Submission
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
from ops.terminal.people import identity
from yatt_core.cluster.gpus import local_gpus
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.logs import redact

if TYPE_CHECKING:
    from db.core.queue_rows import EntryRow
    from db.ledger import Ledger
    from flows.members.driving import Goals
    from ops.terminal.clusters import Clusters
    from yatt_core.spec import RunSpec

POLL_SECONDS = 0.3
ROUND_SECONDS = 1.0
"""Between two looks at the runs, and between two rounds of the scheduler while nothing ends."""
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


def undeclared_pools(home: Home, at_once: int | None) -> PoolsSpec | None:
    """Returns the pools of a home without a pools file; None if there is one. Raises as `machine_pools` does."""
    return None if pools_file(home).exists() else machine_pools(at_once)


def require_at_once(home: Home, at_once: int | None) -> None:
    """Raises `ConfigurationError` if more runs are to be driven at once than a home without a pools file can."""
    undeclared_pools(home, at_once)


@dataclass(frozen=True, slots=True)
class ChildPools:
    """The pools that the runs of a command may use.

    undeclared: those of a home without a pools file; None if there was a file when the command began.
    owner: whose runs they are.
    at_once: most runs to have in the queue at a time; None for all.
    """

    home: Home
    undeclared: PoolsSpec | None
    owner: str
    at_once: int | None

    @classmethod
    def of(cls, home: Home, owner: str, at_once: int | None) -> ChildPools:
        """Returns the pools of a home. Raises `ConfigurationError` as `machine_pools` does."""
        return cls(home, undeclared_pools(home, at_once), owner, at_once)

    @property
    def gpus(self) -> tuple[int, ...]:
        """This machine's GPUs, if all of them are one pool without a pools file."""
        pool = None if self.undeclared is None else self.undeclared.pools[MACHINE]
        return () if pool is None or pool.gpus is None else pool.numbers

    def require(self, spec: RunSpec) -> None:
        """Raises `ConfigurationError` if the pools file is bad, or a run with this spec could never have its devices."""
        self.submission(spec, spec.iterations, priority=0)

    def submission(self, spec: RunSpec, until: int, priority: int) -> Submission:
        """Returns what a run asks of the queue. Raises `ConfigurationError` as `require` does."""
        project = spec.billing.project or DEFAULT_PROJECT
        devices = spec.devices
        pools = read_pools(self.home, self.undeclared)
        if pools is self.undeclared:
            # Ranks of a run that is larger than the machine share its devices; runs share its cores, but not its GPUs.
            machine = pools.pools[MACHINE]
            sharing = 1 if machine.gpus is not None else self.at_once or 1
            devices = min(devices, max(1, len(machine.numbers) // sharing))
        most = {name: pools.most_devices(name, self.owner, project) for name in pools.pools}
        fitting = tuple(name for name, number in most.items() if devices <= number)
        if not fitting:
            raise ConfigurationError(
                f"the runs need {many(devices, 'device')} each, and {self.owner} can have at most {max(most.values())} of a "
                f"pool for project {project} ({pools_file(self.home)})"
            )
        return Submission(
            pools=fitting,
            owner=self.owner,
            project=project,
            priority=priority,
            devices=devices,
            checkpoints=SPEC,
            until=until,
        )


class ChildRuns:
    """Drives runs of a home; `flows.members.driving.Drives`.

    clusters: what drivers are started on while this command schedules.
    at_once: most runs to have in the queue at a time; None for all.
    by: in whose name the runs are in the queue.
    """

    def __init__(self, home: Home, ledger: Ledger, clusters: Clusters, at_once: int | None, by: str) -> None:
        self._home = home
        self._ledger = ledger
        self._clusters = clusters
        self._at_once = at_once
        self._by = by

    def __call__(self, goals: Goals) -> None:
        """Drives runs until no goals are left.

        Raises `InfrastructureError` for runs that ended too early, once the others have ended, `ConfigurationError` if the
        pools file is bad or a run could never have its devices, while no other is in the queue, and `KeyboardInterrupt`.
        """
        pools = ChildPools.of(self._home, self._by, self._at_once)
        work = _Work(ledger=self._ledger, goals=goals, clusters=self._clusters, pools=pools)
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
    counts: whether it has failed if it ends before the iteration. False if it is in the queue, or driven, for something else:
        what is left to do is submitted once it has ended.
    """

    run: str
    until: int
    queued: bool = True
    counts: bool = True


class _Work:
    """The runs of one call.

    failed: what became of the runs that ended too early; after the first one, those that wait are taken out of the queue.
    """

    def __init__(self, ledger: Ledger, goals: Goals, clusters: Clusters, pools: ChildPools) -> None:
        self._home = pools.home
        self._ledger = ledger
        self._goals = goals
        self._pools = pools
        self._wanted: dict[str, _Wanted] = {}
        self._taken_out: set[str] = set()
        self._stopping = False
        own = CommandRuns(self._wanted, clusters, identity(), gpus=pools.gpus)
        self._scheduler = _StandIn(pools.home, ledger, DriverProcesses(pools.home, own), pools.undeclared)
        self._said: set[str] = set()
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
            self._scheduler.look()
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
        self._scheduler.hurry()
        goals = {} if self._stopping else self._goals()
        short = [
            each
            for run, each in ended.items()
            if run in goals and run not in self._taken_out and each.counts and reached(self._ledger, run) < each.until
        ]
        self.failed += [self._failure(each) for each in short]
        if not self.failed:
            self._submit({run: until for run, until in goals.items() if run not in self._wanted})
        if self.failed:
            for wanted in self._wanted.values():
                entry = self._ledger.queue.entry(wanted.run)
                if entry is not None and entry.state == WAITING:
                    self._take_out(wanted)

    def _submit(self, goals: Mapping[str, int]) -> None:
        """Submits goals, all of which are judged before the first is in the queue.

        Raises `ConfigurationError` as `ChildPools.require` does; while runs are under way, that is said, and tried again once one
        has ended.
        """
        waiting = {run: until for run, until in goals.items() if reached(self._ledger, run) < until}
        try:
            submissions = {run: self._submission(run, until) for run, until in waiting.items()}
        except ConfigurationError as error:
            if not self._wanted:
                raise
            self._say(f"no other run is submitted now: {error}")
            return
        left = len(waiting) if self._pools.at_once is None else self._pools.at_once - len(self._wanted)
        for run in list(waiting)[:left]:
            self._wanted[run] = self._entered(run, waiting[run], submissions[run])

    def _submission(self, run: str, until: int) -> Submission:
        """Returns what a run asks of the queue, with the priority that people have given it there before."""
        before = self._ledger.queue.entry(run)
        priority = 0 if before is None else before.priority
        return self._pools.submission(current_spec(self._ledger, run), until, priority)

    def _entered(self, run: str, until: int, submission: Submission) -> _Wanted:
        """Submits a run, unless it is in the queue or driven already."""
        entry = self._ledger.queue.entry(run)
        if entry is not None and entry.ended_at is None:
            return self._found(entry, until, submission)
        if self._is_driven(run):
            return _Wanted(run, until, queued=False, counts=False)
        self._taken_out.discard(run)
        try:
            self._ledger.submissions.submit(run, submission, self._pools.owner)
        except QueueRefused:  # another command has submitted it since
            return _Wanted(run, until, counts=False)
        return _Wanted(run, until)

    def _found(self, entry: EntryRow, until: int, submission: Submission) -> _Wanted:
        """Goes on with an entry that is in the queue; one that asks for something else is taken out, or ends by itself."""
        asks_the_same = entry.wanted == RUN and entry.until == until
        holds = entry.state != WAITING or entry.not_before == PARKED
        fits = (entry.pools, entry.devices) == (",".join(submission.pools), submission.devices)
        if asks_the_same and (holds or fits):
            return _Wanted(entry.run, until)
        found = _Wanted(entry.run, until, counts=False)
        ends_on_the_way = entry.wanted == RUN and entry.until is not None and entry.until < until
        if not (holds and ends_on_the_way):
            self._take_out(found)
        return found

    def _has_ended(self, wanted: _Wanted, show: Show) -> bool:
        iteration = self._ledger.runs.find(wanted.run).iteration
        show(wanted.run, wanted.until, iteration)
        if not wanted.queued:
            return not self._is_driven(wanted.run)
        entry = self._ledger.queue.entry(wanted.run)
        if entry is None or entry.state == ENDED:
            return True
        if entry.state != WAITING or wanted.run in self._taken_out:
            return False
        is_there = iteration >= wanted.until and reached(self._ledger, wanted.run) >= wanted.until
        if is_there or not wanted.counts:
            self._take_out(wanted)  # it was stopped on the way, and needs devices for nothing that is left to do
        elif entry.reason:
            self._say(entry.reason, f"{wanted.run} waits in the queue: ")
        return False

    def _say(self, text: str, beginning: str = "") -> None:
        """Tells people a text, once, whatever it begins with."""
        if text not in self._said:
            self._said.add(text)
            message(f"{beginning}{text}")

    def _take_out(self, wanted: _Wanted) -> None:
        if not wanted.queued:
            reason = "the command that drives several runs was interrupted"
            self._ledger.runs.ask_to_stop(wanted.run, reason, by=self._pools.owner)
            return
        self._taken_out.add(wanted.run)
        with _unless_out():
            self._ledger.submissions.change(wanted.run, self._pools.owner, wanted=REMOVE)
        self._scheduler.hurry()

    def _failure(self, wanted: _Wanted) -> str:
        entry = self._ledger.queue.entry(wanted.run)
        outcome = "" if entry is None or not entry.outcome else f"; it has left the queue: {entry.outcome}"
        log = self._home.run_folder(wanted.run) / LOG
        return f"{ended_early(self._ledger, wanted.run, wanted.until)}{outcome}; the output of its driver is in {log}"

    def _is_driven(self, run: str) -> bool:
        return driver_of(self._ledger.overview.line(run)) == DRIVEN


class _StandIn:
    """Schedules the queue in this process, whenever nobody else does.

    Every round renews the lease, which is a durable write, so there is one each second, and one at once when a driver has ended
    or the command has changed the queue.
    """

    def __init__(self, home: Home, ledger: Ledger, drivers: DriverProcesses, undeclared: PoolsSpec | None) -> None:
        self._scheduler = Scheduler(home, ledger, drivers, undeclared)
        self._ledger = ledger
        self._drivers = drivers
        self._leads = False
        self._next = 0.0
        self._ended: frozenset[int] = frozenset()
        self._said = ""

    def hurry(self) -> None:
        """Has the next look schedule."""
        self._next = 0.0

    def look(self) -> None:
        """Schedules if it is time to, unless another scheduler serves the queue. What is wrong is said once, and tried again."""
        ended = self._drivers.ended()
        if time.monotonic() < self._next and ended <= self._ended:
            return
        self._next = time.monotonic() + ROUND_SECONDS
        self._ended = ended
        try:
            self._round()
            self._said = ""
        except (LeaseHeld, Fenced):
            self._leads = False
        except (LedgerError, YattError) as error:  # a bad pools file, or people have changed an entry since it was read
            said = redact(str(error))
            if said != self._said:
                self._said = said
                message(f"the queue is not scheduled now: {said}")

    def resign(self) -> None:
        """Gives the lease back, if this process has it; if that fails, it ends by itself."""
        if not self._leads:
            return
        try:
            self._scheduler.resign()
        except Fenced:
            self._leads = False
        except LedgerError as error:
            message(f"the lease of the queue ends by itself: {redact(str(error))}")

    def _round(self) -> None:
        if not self._leads:
            if self._is_served():
                return
            self._scheduler.lead()
            self._leads = True
        self._scheduler.round()

    def _is_served(self) -> bool:
        """Returns True if another scheduler has the lease, which only reads."""
        known = self._ledger.queue.scheduler()
        return known is not None and known.holder is not None and known.expires_in > 0 and not is_gone(known.holder)


@contextmanager
def _unless_out() -> Iterator[None]:
    """Passes over the removal of an entry that is out of the queue, or being taken out, already."""
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
