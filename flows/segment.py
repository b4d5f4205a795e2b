"""A segment: one driver's stretch of a run, from taking the lease to giving it back.

Holds what the phases share: the ledger and the fence, the fleet of actors, the spec, the clock of the iteration. Owns the
threads that keep the lease, the heartbeat and the outbox going. It is opened before or by the flow (`flows.launch`), claimed
by the flow, and leaves the run in a recorded state however it ends.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import FrameType

import psutil

from db.engine import Fence
from db.errors import Fenced, LedgerError
from db.ledger import Ledger
from db.outbox import OutboxEntry
from flows.home import Home
from flows.lease import LeaseKeeper
from flows.outbox import OutboxPump
from flows.protocols import Observer, Tracker
from flows.results import SEGMENT_ENDED, run_results
from flows.snapshots import SnapshotKeeper
from flows.state import ControlState
from yatt_core.cluster.client import Heartbeat
from yatt_core.cluster.devices import inventory
from yatt_core.cluster.metering import BytesMeter
from yatt_core.controllers.fleet import Fleet
from yatt_core.errors import ExitCode, FencedError, InfrastructureError, YattError
from yatt_core.logs import redact
from yatt_core.placement.policy import Colocate
from yatt_core.receipts import InputsReceipt
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")
OUTBOX_DRAIN_SECONDS = 60.0
START_END_SECONDS = 10.0
"""How long a start under way may take to notice that the segment ends."""
DIGESTS = ("weights_digest", "experience_digest", "metrics_digest")
TRACKED_STATES = {"running": "RUNNING", "completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a segment ended. state: of the run. exit_code: of the command that ran it."""

    run: str
    state: str
    iteration: int
    reason: str
    exit_code: int


class Segment:
    """What the phases of one segment share."""

    def __init__(
        self,
        home: Home,
        run: str,
        spec: RunSpec,
        ledger: Ledger,
        fence: Fence,
        observer: Observer,
        tracker: Tracker | None,
    ) -> None:
        self.home, self.run, self.spec = home, run, spec
        self.ledger, self.fence, self.observer = ledger, fence, observer
        self.folder = home.run_folder(run)
        self.branch = ledger.runs.find(run).current_branch
        self.meter = BytesMeter()
        self.policy = Colocate()
        self.fleet = Fleet(spec, self.folder, fence.epoch, self.branch, self.meter)
        self.snapshots = SnapshotKeeper(ledger, fence, self.fleet, self.folder, spec)
        self.devices = 0
        self.seconds: dict[str, float] = {}
        self.last_seconds: Mapping[str, float] = {}
        self._inputs: InputsReceipt | None = None
        self._environment: Mapping[str, str] = {}
        self._iteration_started, self._bytes_at_start = time.monotonic(), 0
        self._connect: Callable[[], None] = lambda: None
        self._starting: Future[None] | None = None
        self._stop = threading.Event()
        self._ending = threading.Event()
        self._closed = False
        self._lease = LeaseKeeper(home.ledger, fence, spec.recovery.lease_seconds)
        self._heartbeat = ExitStack()
        self._pump = OutboxPump(home.ledger, fence, tracker) if tracker else None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start_threads(self) -> None:
        """Lease, heartbeat and outbox; from here on the segment must be ended."""
        self._lease.start()
        self._heartbeat.enter_context(Heartbeat(self.folder, self.fence.epoch))
        if self._pump:
            self._pump.start()

    def begin_start(self, connect: Callable[[], None]) -> None:
        """Connects to Ray and starts the fleet in a thread, beside what else has to come up."""
        self._connect = connect
        executor = ThreadPoolExecutor(1, "start")
        self._starting = executor.submit(self._start)
        executor.shutdown(wait=False)

    def ready_fleet(self) -> None:
        """Waits for the fleet that is starting; without one, starts all actors afresh (after a failure)."""
        if self._starting is None:
            self._start()
            return
        try:
            self._starting.result()
        finally:
            self._starting = None

    def _start(self) -> None:
        """Connects to Ray, which may be a new one since the last time, and starts the fleet."""
        self._connect()
        if not self._ending.is_set():
            self.start_fleet()

    def start_fleet(self) -> None:
        """Starts all actors afresh and makes them ready; Ray must be connected."""
        self.check()
        self.observer.stage("starting controllers, engines and trainer")
        self.fleet.start()
        self._inputs = self.fleet.materialise()
        self.fleet.load(self._inputs)
        self._environment = self.fleet.environment()
        self.devices = len(inventory())
        self.snapshots.forget()

    def book(self, flow_run_id: str, flow_run_name: str) -> None:
        """Books the flow run that this segment is, and that the run is running."""
        self.ledger.leases.start_segment(self.fence, flow_run_id, flow_run_name)
        self.set_state("running", "")

    def check(self) -> None:
        """Raises `FencedError` when this driver may no longer act."""
        self._lease.check()

    def already_finished(self) -> Outcome | None:
        """Ends the segment at once where the run has reached its target and everything is kept; none where there is work."""
        row = self.ledger.runs.find(self.run)
        if row.state != "completed" or row.iteration < self.spec.iterations:
            return None
        self.end("nothing to do")
        return Outcome(self.run, row.state, row.iteration, "target reached before", ExitCode.OK)

    def close(self, state: ControlState) -> Outcome:
        """A graceful end: a last snapshot, the run's state, nothing left in the outbox if the tracker answers."""
        if state.iteration >= 0 and self.snapshots.at(state.iteration) is None:
            self.observer.stage("taking the last snapshot")
            self.snapshots.begin(state.iteration)
        self.snapshots.wait()
        done = state.iteration >= self.spec.iterations
        name, reason = ("completed", "target reached") if done else ("stopped", "stop requested")
        self.set_state(name, reason)
        self._tell_digests()
        self._closed = True
        return Outcome(self.run, name, state.iteration, reason, ExitCode.OK)

    def set_state(self, state: str, reason: str) -> None:
        """Says in the ledger, and through the outbox in the tracker, what has become of the run."""
        self.ledger.runs.set_state(self.fence, state, reason)
        self._tell(state, "status", {"status": TRACKED_STATES[state]})

    def _tell_digests(self) -> None:
        """Digests and the audit chain's head as tags of the tracking run."""
        results = asdict(run_results(self.ledger, self.run))
        tags = {f"yatt.{key}": str(results[key]) for key in DIGESTS} | {"yatt.iteration": str(results["iteration"])}
        self._tell("digests", "tags", tags | {"yatt.audit_head": self.ledger.events.head(self.run).hash})

    def _tell(self, name: str, kind: str, body: Mapping[str, str]) -> None:
        """Adds a row to the outbox, once in a segment by this name."""
        if self.spec.tracking.enabled:
            key, now = f"{self.run}/e{self.fence.epoch}/{name}", int(time.time() * 1000)
            self.ledger.outbox.enqueue(self.fence, [OutboxEntry(key, kind, body, now)])

    @contextmanager
    def ended_on_error(self) -> Iterator[None]:
        """Ends the segment, with the run's state recorded, when what stands inside raises."""
        try:
            yield
        except (Fenced, FencedError) as error:
            # Nobody may have taken over: then this is the last word on the run, else it is refused.
            self._end_early("fenced", "failed", str(error))
            raise FencedError(f"run {self.run}: {error}") from error
        except YattError as error:
            self._end_early("failed", "failed", str(error))
            raise
        except Exception as error:
            log.exception("unforeseen")
            self._end_early("failed", "failed", f"unexpected {type(error).__name__}: {error}")
            raise
        except BaseException:
            self._end_early("interrupted", "stopped", "interrupted")
            raise

    def _end_early(self, outcome: str, state: str, reason: str) -> None:
        """Ends the segment; a ledger that refuses to hear of it must not hide what ended it."""
        try:
            if not self._closed:
                self.set_state(state, redact(reason))
        except LedgerError as error:
            log.error("the run %s (%s), which the ledger does not record: %s", state, redact(reason), error)
        finally:
            self.end(outcome)

    def end(self, outcome: str) -> None:
        """Ends threads and actors and gives the lease back; safe to call however far the segment got."""
        self._ending.set()
        if self._pump and not self._pump.stop(OUTBOX_DRAIN_SECONDS):
            self.observer.warned("MLflow did not take all points; they wait in the ledger for the next resume")
        self._stop_fleet()
        self._heartbeat.close()
        self._lease.stop()
        try:
            seconds = time.time() - psutil.Process().create_time()
            self.ledger.events.append(
                self.run, SEGMENT_ENDED, {"epoch": self.fence.epoch, "seconds": seconds}, self.fence
            )
            self.ledger.leases.end_segment(self.fence, outcome)
            self.ledger.leases.release(self.fence)
        except LedgerError as error:
            log.warning("the end of epoch %d is not in the ledger: %s", self.fence.epoch, error)
        self.ledger.close()

    def _stop_fleet(self) -> None:
        """Ends the actors, also those that a start under way still makes: losing the first ones ends its waiting."""
        self.fleet.stop()
        if self._starting is not None:
            wait([self._starting], START_END_SECONDS)
            self.fleet.stop()

    # -- what the loop asks -------------------------------------------------------------------------------------------

    def goes_on(self, state: ControlState) -> bool:
        """False at the target, and as soon as somebody asked for a stop."""
        self.check()
        if self.ledger.runs.desired_state(self.run) == "stop":
            self._stop.set()
        return state.iteration < self.spec.iterations and not self._stop.is_set()

    def request_stop(self) -> bool:
        """Asks for a stop at the next safe point; True the first time."""
        first = not self._stop.is_set()
        self._stop.set()
        return first

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

    @property
    def inputs(self) -> InputsReceipt:
        """The run's inputs, once the fleet has started."""
        if self._inputs is None:
            raise InfrastructureError("the fleet has not started")
        return self._inputs

    @property
    def environment(self) -> Mapping[str, str]:
        """What the updates' last bits depend on."""
        return self._environment

    def record_outcome(self, iteration: int, seconds: Mapping[str, float]) -> None:
        """Writes beside the iteration's placement decision what really happened; once, whoever commits first."""
        decision = self.ledger.records.decisions(self.run, self.branch, iteration)[0]
        if decision.outcome is None:
            self.ledger.records.decision_outcome(self.fence, self.branch, iteration, decision.seq, dict(seconds))

    # -- the iteration's clock ----------------------------------------------------------------------------------------

    def iteration_seconds(self) -> float:
        """Seconds since the last commit."""
        return time.monotonic() - self._iteration_started

    def iteration_bytes(self) -> int:
        """Bytes that reached the driver since the last commit."""
        return self.meter.total - self._bytes_at_start

    def restart_clock(self) -> None:
        """Starts the clock of an iteration."""
        self.last_seconds, self.seconds = self.seconds, {}
        self._iteration_started, self._bytes_at_start = time.monotonic(), self.meter.total


_offered: dict[str, Segment] = {}


@contextmanager
def offered(segment: Segment) -> Iterator[None]:
    """Leaves an opened segment for the flow of the same run in this process to claim.

    Where the flow fails before it claims it, the segment is ended here.
    """
    _offered[segment.run] = segment
    try:
        yield
    except BaseException:
        if _offered.pop(segment.run, None) is None:
            raise
        with segment.ended_on_error():
            raise


@contextmanager
def claimed_segment(run: str) -> Iterator[Segment]:
    """The opened segment of a run; however the flow ends, the run is left in a recorded state."""
    segment = _offered.pop(run)
    with _graceful_signals(segment), segment.ended_on_error():
        yield segment
    segment.end("ended")


@contextmanager
def _graceful_signals(segment: Segment) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop at the next safe point, the second ends at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if not segment.request_stop():
            raise KeyboardInterrupt
        segment.observer.stage("stopping at the end of this iteration; once more to end at once")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
