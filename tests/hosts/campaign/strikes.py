"""Strikes a run with host faults, one after another, and waits each time until the run has made progress again.

Consumes a schedule, a bed, an operator and the run's ledger; produces a record of what was struck and how long the run
took to go on.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.hosts.campaign.bed import DISK, Bed
from tests.hosts.campaign.faults import Fault, Kind
from tests.hosts.campaign.operator import Operator
from tests.hosts.host import Host
from tests.recovery.ledger_watch import LedgerWatch
from tests.waiting import holds_in_time
from yatt_core.errors import ExitCode

PHASE_SECONDS = 120.0
PROGRESS_SECONDS = 300.0
LATE_SECONDS = 120.0
"""How long an isolated driver may take to end once it can reach the ledger again."""
POLL_SECONDS = 0.01
TEND_SECONDS = 0.3
WAITING = ("start", "recover")
"""Phases that are no progress."""


@dataclass
class Record:
    """What the faults did.

    faults: those that struck, each with the phase that was in progress.
    recover_s: seconds from a host's loss (of power), or from the end of any other fault, until a phase that was
        dispatched thereafter was done.
    noticed: faults after which an attempt failed, an actor was lost or another driver took over.
    stuck: faults after which the run made no progress.
    late_drivers: how each driver ended that was isolated while another one took over.
    lost: iterations that were committed and then missing.
    exits: drivers that ended by themselves, by exit code and last output.
    pauses_for_space: drivers that paused the run because a disk was full.
    """

    faults: list[Fault] = field(default_factory=list)
    recover_s: list[float] = field(default_factory=list)
    noticed: int = 0
    stuck: list[str] = field(default_factory=list)
    late_drivers: list[str] = field(default_factory=list)
    lost: int = 0
    exits: list[str] = field(default_factory=list)
    pauses_for_space: int = 0


class Strikes:
    """Strikes a run.

    lease: the seconds that the driver's lease lasts.
    say: reports a line to the log.
    """

    def __init__(
        self, bed: Bed, operator: Operator, watch: LedgerWatch, lease: float, seed: int, say: Callable[[str], None]
    ) -> None:
        self._bed = bed
        self._operator = operator
        self._watch = watch
        self._lease = lease
        self._say = say
        self._choose = random.Random(f"yatt.hosts.targets:{seed}")
        self._highest = -1
        self._tended = 0.0
        self.record = Record()

    @property
    def iteration(self) -> int:
        """The highest iteration that was committed."""
        return self._highest

    def begin(self) -> None:
        """Waits until the run has committed its first iteration."""
        if not self.wait_for(lambda: self._highest >= 1, PROGRESS_SECONDS):
            raise RuntimeError(f"the run does not begin: {self._operator.exits}")

    def strike(self, fault: Fault) -> None:
        """Strikes once; returns when the run has gone on, or counts as stuck."""
        self._await_phase(fault.phase)
        before = self._watch.term()
        began = now()
        moment = self._apply(fault)
        going_on = self.wait_for(lambda: self._watch.done_since(moment, WAITING), PROGRESS_SECONDS)
        noticed = self._watch.failures_since(began) > 0 or self._watch.term() > before
        self.record.faults.append(fault)
        self.record.noticed += noticed
        if not going_on:
            self.record.stuck.append(str(fault))
            self._say(f"{fault}: stuck; all processes begin anew")
            self._operator.end()
            return
        seconds = (now() - moment) / 1000
        self.record.recover_s.append(seconds)
        self._say(f"{fault}: {'noticed' if noticed else 'unnoticed'}, goes on after {seconds:.1f} s")

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Tends the run until a condition holds; returns False if it does not within `seconds`."""
        return holds_in_time(condition, seconds, self._tend, POLL_SECONDS)

    def _tend(self) -> None:
        if time.monotonic() - self._tended < TEND_SECONDS:
            return
        self._operator.tend()
        self.note_iteration()
        self._tended = time.monotonic()

    def note_iteration(self) -> None:
        """Looks up how far the run has come."""
        iteration = self._watch.iteration()
        self.record.lost += max(0, self._highest - iteration)
        self._highest = max(self._highest, iteration)

    def _hold(self, seconds: float) -> None:
        self.wait_for(lambda: False, seconds)

    def _await_phase(self, name: str) -> None:
        """Waits until a phase is in progress; a fault whose phase does not come strikes whenever it may be."""

        def is_open() -> bool:
            phase = self._watch.open_phase()
            return phase is not None and phase.phase == name

        self.wait_for(is_open, PHASE_SECONDS)

    def _apply(self, fault: Fault) -> int:
        """Strikes and mends; returns the moment from which recovery is counted."""
        head = self._operator.head
        worker = self._choose.choice([host for host in self._operator.hosts if host is not head])
        either = head if fault.on_driver else worker
        self._say(f"{fault} strikes iteration {self._highest}")
        match fault.kind:
            case Kind.WORKER_POWER:
                return self._power(worker, fault)
            case Kind.DRIVER_POWER:
                return self._power(head, fault)
            case Kind.LONG_PARTITION if either is head:
                return self._isolate(head, fault)
            case Kind.PARTITION | Kind.LONG_PARTITION:
                either.link.cut(sending=fault.sending, receiving=fault.receiving)
                return self._mended(either, fault)
            case Kind.PAIR_PARTITION:
                worker.link.cut(head.address, sending=fault.sending, receiving=fault.receiving)
                return self._mended(worker, fault)
            case Kind.LOSS:
                either.link.lose(fault.amount)
                return self._mended(either, fault)
            case Kind.DELAY:
                either.link.delay(fault.amount)
                return self._mended(either, fault)
            case Kind.DISK:
                either.fill_disk(DISK)
                self._hold(fault.seconds)
                either.free_disk(DISK)
                return now()
            case Kind.STORAGE:
                self._bed.storage.link.cut()
                return self._mended(self._bed.storage, fault)

    def _mended(self, host: Host, fault: Fault) -> int:
        self._hold(fault.seconds)
        host.link.mend()
        return now()

    def _power(self, host: Host, fault: Fault) -> int:
        """Takes a host's power; if it was the driver's, another one gets the driver. The host comes back later."""
        moment = now()
        host.power_off(fault.keeps_disk)
        if host is self._operator.head:
            self._operator.move()
        self._hold(fault.seconds)
        host.power_on()
        return moment

    def _isolate(self, host: Host, fault: Fault) -> int:
        """Cuts the driver's host off until another driver has taken over; then the first one must end by itself."""
        driver = self._operator.driver
        host.link.cut(sending=fault.sending, receiving=fault.receiving)
        moment = now()
        before = self._watch.term()
        self._hold(self._lease)
        self._operator.isolated.add(host.name)
        self._operator.move()
        self._hold(fault.seconds - self._lease)
        self.wait_for(lambda: self._watch.term() > before, PROGRESS_SECONDS)
        host.link.mend()
        if driver is not None:
            self.wait_for(lambda: driver.poll() is not None, LATE_SECONDS)
            self.record.late_drivers.append(_how_ended(driver))
        self._operator.clear(host)
        self._operator.isolated.remove(host.name)
        return moment


def _how_ended(driver: subprocess.Popen[str]) -> str:
    code = driver.poll()
    return "still runs" if code is None else "lease held by another" if code == ExitCode.LEASE_HELD else f"exit {code}"


def now() -> int:
    """Returns the milliseconds since 1970, which the ledger's clock also counts."""
    return int(time.time() * 1000)
