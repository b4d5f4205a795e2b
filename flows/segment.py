"""A segment: one driver's stretch of a run, from taking the lease to giving it back.

Holds what the phases share: the ledger and the fence, the fleet of actors, the spec, the iteration's clock and gauges. Owns the
threads that keep the lease, the heartbeat and the outbox going. It is opened before or by the flow (`flows.launch`), claimed
by the flow (`flows.claims`), and leaves the run in a recorded state however it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import psutil

from db.engine import Fence
from db.errors import LedgerError, LedgerUnavailable
from db.ledger import Ledger
from db.outbox import OutboxEntry
from flows.clock import Clock, SystemClock
from flows.deadlines import PhaseDeadlines
from flows.fleet_start import FleetStart
from flows.foresight import Foresight
from flows.guards import Ending, Guards
from flows.home import Home
from flows.lease import LeaseKeeper
from flows.notifications import NotificationDeliverer, state_entry
from flows.outbox import OutboxPump, TrackerDeliverer, row_ids
from flows.placement import Work
from flows.placement_inputs import Inputs
from flows.protocols import Notifier, Observer, Tracker
from flows.results import SEGMENT_ENDED, run_results
from flows.snapshots import SnapshotKeeper
from flows.state import ControlState
from flows.stopping import StopRequests
from flows.windows import Window
from yatt_core.cluster.client import Heartbeat
from yatt_core.cluster.metering import BytesMeter
from yatt_core.controllers.fleet import Fleet
from yatt_core.controllers.pool import constants_known
from yatt_core.errors import ExitCode
from yatt_core.logs import redact
from yatt_core.placement.registry import find_policy
from yatt_core.placement.seen import Usage
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import open_store

log = logging.getLogger("yatt_core.flow")
OUTBOX_DRAIN_SECONDS, NOTIFICATION_DRAIN_SECONDS = 60.0, 20.0
LEDGER_POLL_SECONDS = 1.0
BETWEEN_PHASES_SECONDS = 300.0
"""What the main loop may take outside of phases before it counts as hanging."""
DIGESTS = ("weights_digest", "experience_digest", "metrics_digest")
NEWS = ("paused", "failed")
"""States that people are told of."""
TRACKED_STATES = {
    "running": "RUNNING",
    "completed": "FINISHED",
    "stopped": "KILLED",
    "paused": "KILLED",
    "failed": "FAILED",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a segment ended. state: of the run. exit_code: of the command that ran it."""

    run: str
    state: str
    iteration: int
    reason: str
    exit_code: int


class Segment:
    """What the phases of one segment share.

    accept_drift: replay in an environment other than the recorded one. window: the scheduled one that the segment is driven in,
    at whose end it stops as if asked to.
    """

    def __init__(
        self,
        home: Home,
        run: str,
        spec: RunSpec,
        ledger: Ledger,
        fence: Fence,
        observer: Observer,
        tracker: Tracker | None,
        accept_drift: bool = False,
        clock: Clock | None = None,
        fleet: Fleet | None = None,
        notifier: Notifier | None = None,
        window: Window | None = None,
    ) -> None:
        self.home, self.run, self.spec, self.accept_drift = home, run, spec, accept_drift
        self.ledger, self.fence, self.observer = ledger, fence, observer
        self.clock: Clock = clock or SystemClock()
        self.window = window
        self.folder = home.run_folder(run)
        self.store = open_store(spec, self.folder)
        self.meter = BytesMeter()
        self.foresight = Foresight(find_policy(spec.placement, constants_known(spec)))
        self.placed: Inputs | None = None
        self.work: Work | None = None
        self.stops = StopRequests()
        self.guards = Guards(ledger, fence, spec, self.clock, observer, self.stops)
        self.deadlines = PhaseDeadlines(ledger, run, spec.recovery)
        self.seconds: dict[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.usage: tuple[Usage, ...] = ()
        self.last_seconds: Mapping[str, float] = {}
        self.outcome: Outcome | None = None
        self.failure: BaseException | None = None
        self.enter_branch(ledger.runs.find(run).current_branch, fleet)
        self.start = FleetStart(self)
        recovery = spec.recovery
        self._lease = LeaseKeeper(home.ledger, fence, recovery.lease_seconds, recovery.ledger_wait_seconds, self._beat)
        self._heartbeat = ExitStack()
        self._pump = OutboxPump(home.ledger, fence, TrackerDeliverer(tracker)) if tracker else None
        notify = spec.guards.notify
        told = NotificationDeliverer(notifier, notify) if notifier and notify else None
        self._notifications = OutboxPump(home.ledger, fence, told) if told else None
        self.restart_clock()

    def enter_branch(self, branch: int, fleet: Fleet | None = None) -> None:
        """Works on a branch from here on; the actors of another one are ended when the fleet is next made ready."""
        self.branch = branch
        self.fleet = fleet or Fleet(self.spec, self.folder, self.fence.epoch, branch, self.meter, self.stops)
        self.snapshots = SnapshotKeeper(self.ledger, self.fence, self.fleet, self.folder, self.spec, self.store)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start_threads(self) -> None:
        """Lease, heartbeat and outbox; from here on the segment must be ended."""
        self._lease.start()
        self._heartbeat.enter_context(Heartbeat(self.folder, self.fence.epoch))
        for pump in filter(None, (self._pump, self._notifications)):
            pump.start()

    def book(self, flow_run_id: str, flow_run_name: str) -> None:
        """Books the flow run that this segment is, and that the run is running."""
        self.ledger.leases.start_segment(self.fence, flow_run_id, flow_run_name)
        self.set_state("running", "")

    def check(self) -> None:
        """Raises `FencedError` when this driver may no longer act."""
        self._lease.check()

    def allow(self, seconds: float, work: str) -> None:
        """The main loop may take so long for this; a driver that hangs beyond it lets its lease run out."""
        self._lease.allow(seconds + BETWEEN_PHASES_SECONDS, work)

    def await_ledger(self, error: LedgerUnavailable) -> None:
        """Waits for the ledger, then fails what was open. Raises `LedgerUnavailable` once that took `ledger_wait_seconds`."""
        log.warning("the ledger does not answer: %s", error)
        self.observer.warned(f"the ledger does not answer, waiting: {redact(str(error))}")
        wait = self.spec.recovery.ledger_wait_seconds
        give_up = self.clock.monotonic() + wait
        while True:
            try:
                self.ledger.phases.fail_open(self.fence, redact(str(error)))
            except LedgerUnavailable as last:
                if self.clock.monotonic() > give_up:
                    # Of this kind whatever it was: a ledger that the run has written is at no wrong place.
                    raise LedgerUnavailable(f"the ledger did not answer for {wait:g} s: {last}") from last
                self.clock.sleep(LEDGER_POLL_SECONDS)
            else:
                return

    def already_finished(self) -> Outcome | None:
        """Ends the segment at once where the run has reached its target and everything is kept; none where there is work."""
        row = self.ledger.runs.find(self.run)
        if row.state != "completed" or row.iteration < self.spec.iterations:
            return None
        self.end("nothing to do")
        return Outcome(self.run, row.state, row.iteration, "target reached before", ExitCode.OK)

    def out_of_budget(self) -> Outcome | None:
        """Ends the segment at once where the run has used up its budget; none where something of it is left."""
        ending = self.guards.over_budget(self.branch, self.committed_iteration())
        if ending is None:
            return None
        outcome = self._conclude(ending)
        self.end("out of budget")
        return outcome

    def close(self, state: ControlState) -> Outcome:
        """A graceful end: a last snapshot, the run's state, nothing left in the outbox if the tracker answers."""
        self.allow(3 * self.spec.recovery.phase_deadline_seconds, "the last snapshot")
        if self.snapshots.lacks(state.iteration) and state.iteration >= 0:
            self.observer.stage("taking the last snapshot")
            self.snapshots.begin(state.iteration)
            self.snapshots.wait()
        ending = self.guards.ending(self.branch, state.iteration)
        if ending is None:
            done = state.iteration >= self.spec.iterations
            name, reason = ("completed", "target reached") if done else ("stopped", self.stops.reason)
            ending = Ending(name, reason, ExitCode.OK)
        return self._conclude(ending)

    def pause(self, reason: str) -> Outcome:
        """Ends with the run paused: somebody has to look before it goes on."""
        self.observer.warned(f"paused: {reason}")
        return self._conclude(Ending.of("pause", reason))

    def _conclude(self, ending: Ending) -> Outcome:
        self.set_state(ending.state, redact(ending.reason))
        self._tell_digests()
        iteration = self.committed_iteration()
        self.outcome = Outcome(self.run, ending.state, iteration, ending.reason, ending.exit_code)
        return self.outcome

    def set_state(self, state: str, reason: str) -> None:
        """Says in the ledger, and through the outbox in the tracker, what has become of the run; to people, what went wrong."""
        is_news = state in NEWS and self.spec.guards.notify is not None
        news = [state_entry(self.run, self.fence.epoch, state, reason, self.clock.time_ms())] if is_news else []
        self.ledger.runs.set_state(self.fence, state, reason, news)
        self._tell(state, "status", {"status": TRACKED_STATES[state]})

    def _tell_digests(self) -> None:
        """Digests and the audit chain's head as tags of the tracking run."""
        results = asdict(run_results(self.ledger, self.run))
        tags = {f"yatt.{key}": str(results[key]) for key in DIGESTS} | {"yatt.iteration": str(results["iteration"])}
        self._tell("digests", "tags", tags | {"yatt.audit_head": self.ledger.events.head(self.run).hash})

    def _tell(self, name: str, kind: str, body: Mapping[str, str]) -> None:
        """Adds a row to the outbox, once in a segment by this name; a later branch is told of in its own tracking run too."""
        if self.spec.tracking.enabled:
            keys, now = row_ids(self.run, self.branch, f"e{self.fence.epoch}/{name}"), self.clock.time_ms()
            self.ledger.outbox.enqueue(self.fence, [OutboxEntry(key, kind, body, now) for key in keys])

    def end_early(self, outcome: str, state: str, reason: str) -> None:
        """Ends the segment; a ledger that refuses to hear of it must not hide what ended it."""
        try:
            if self.outcome is None:
                self.ledger.phases.fail_open(self.fence, redact(reason))
                self.set_state(state, redact(reason))
        except LedgerError as error:
            log.error("the run %s (%s), which the ledger does not record: %s", state, redact(reason), error)
        finally:
            self.end(outcome)

    def end(self, outcome: str) -> None:
        """Ends threads and actors and gives the lease back; safe to call however far the segment got."""
        if self._pump and not self._pump.stop(OUTBOX_DRAIN_SECONDS):
            self.observer.warned("MLflow did not take all points; they wait in the ledger for the next resume")
        if self._notifications and not self._notifications.stop(NOTIFICATION_DRAIN_SECONDS):
            self.observer.warned("not all alarms could be sent; they wait in the ledger for the next resume")
        self.start.end()
        self._heartbeat.close()
        self._lease.stop()
        try:
            seconds = self.clock.time_ms() / 1000 - psutil.Process().create_time()
            self.ledger.events.append(
                self.run, SEGMENT_ENDED, {"epoch": self.fence.epoch, "seconds": seconds}, self.fence
            )
            self.ledger.leases.end_segment(self.fence, outcome)
            self.ledger.leases.release(self.fence)
        except LedgerError as error:
            log.warning("the end of epoch %d is not in the ledger: %s", self.fence.epoch, error)
        self.ledger.close()

    # -- what the loop asks -------------------------------------------------------------------------------------------

    def goes_on(self, state: ControlState) -> bool:
        """False at the target, and as soon as somebody, or a guard, asked for an end."""
        self.check()
        self._see_requests(self.ledger)
        if self.stops.asked or self.guards.ending(self.branch, state.iteration) is not None:
            return False
        return state.iteration < self.spec.iterations

    def _beat(self, ledger: Ledger) -> None:
        """Looks around, from the thread that renews the lease."""
        self._see_requests(ledger)
        self.guards.look_at_phase(ledger)

    def _see_requests(self, ledger: Ledger) -> None:
        """Looks whether an operator wants the run to stop, and by when; and whether the segment's window is over."""
        if self.window is not None and self.window.is_over(datetime.fromtimestamp(self.clock.time_ms() / 1000, UTC)):
            self.stops.ask(self.spec.recovery.stop_grace_seconds, f"its window is over: {self.window}")
        if ledger.runs.desired_state(self.run) == "stop":
            self.stops.ask(ledger.runs.stop_deadline(self.run))

    def evaluates(self, iteration: int) -> bool:
        """True if the iteration is measured on the held-out tasks."""
        every = self.spec.evaluation.every
        return iteration == self.spec.iterations or (every > 0 and iteration % every == 0)

    def takes_snapshot(self, iteration: int) -> bool:
        """True if a snapshot is begun in the iteration."""
        return iteration % self.spec.snapshots.every == 0

    def committed_iteration(self) -> int:
        """The last committed iteration; 0 also before the first."""
        return max(0, self.ledger.runs.find(self.run).iteration)

    # -- the iteration's clock ----------------------------------------------------------------------------------------

    def iteration_seconds(self) -> float:
        """Seconds since the last commit."""
        return self.clock.monotonic() - self._iteration_started

    def iteration_bytes(self) -> int:
        """Bytes that reached the driver since the last commit."""
        return self.meter.total - self._bytes_at_start

    def restart_clock(self) -> None:
        """Starts the clock of an iteration."""
        self.last_seconds, self.seconds, self.gauges = self.seconds, {}, {}
        self._iteration_started, self._bytes_at_start = self.clock.monotonic(), self.meter.total
