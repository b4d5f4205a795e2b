"""A driver session: one driver's work on a run, from taking the lease to giving it back.

Holds what the phases need: the run's context, its actors and checkpoints, guards and stop requests, and the driver's
threads. Opened by `flows.launch`, claimed by the flow (`flows.driver.session_claims`). However it ends, the run is
left in a recorded state.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import psutil

from db.core.errors import LedgerError, LedgerUnavailable
from db.ledger import Ledger
from flows.billing.price_file import price_path
from flows.billing.session_billing import SessionBilling
from flows.driver.actors_start import ActorsStart
from flows.driver.checkpoints import CheckpointKeeper
from flows.driver.context import RunContext
from flows.driver.deadlines import PhaseDeadlines
from flows.driver.gates import Gates
from flows.driver.guards import Ending, Guards
from flows.driver.iteration_profile import IterationProfile
from flows.driver.ledger_outage import LedgerOutage
from flows.driver.machine_meter import MachineMeter
from flows.driver.outages import START, Outages
from flows.driver.requested_checkpoints import RequestedCheckpoints
from flows.driver.run_status import SessionOutcome, conclude, set_state
from flows.driver.standby import Standby
from flows.driver.start_record import record_start
from flows.driver.stopping import StopRequests, wait_unless_stopped
from flows.driver.threads import DriverThreads
from flows.driver.tracing import SessionTracing
from flows.driver.windows import Window
from flows.gates.candidates import judge_checkpoints
from flows.gates.promotions import settle
from flows.placement.prefetch import PlacementPrefetch
from flows.run.control_state import ControlState
from flows.run.lease import DRIVER
from flows.run.protocols import Notifier, Tracker
from flows.run.results import SESSION_ENDED
from yatt_core.cluster.metering import BytesMeter
from yatt_core.dispatch.pool import constants_known
from yatt_core.errors import ExitCode
from yatt_core.logs import redact
from yatt_core.outage import pause_before
from yatt_core.placement.policies.registry import find_policy
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spent_time import LEDGER, spent
from yatt_core.tracing.calls import call_term

log = logging.getLogger("yatt_core.flow")
HOUR_MS = 3_600_000


class DriverSession:
    """One driver's hold on a run.

    window: the scheduled window of the session; at its end the session stops as if requested.
    actors: a substitute for the run's actors, for simulations.
    until: the iteration after which the session stops; None for the run's target.
    """

    def __init__(
        self,
        context: RunContext,
        trackers: Mapping[str, Tracker] | None = None,
        notifier: Notifier | None = None,
        window: Window | None = None,
        actors: RunActors | None = None,
        until: int | None = None,
    ) -> None:
        spec = context.spec
        self.context = context
        self.window = window
        self._until = until
        self.meter = BytesMeter()
        self.stops = StopRequests()
        self.tracing = SessionTracing(context.ledger, context.fence, context.branch, context.clock)
        self.machine = MachineMeter(context.home.folder)
        self.profile = IterationProfile()
        context.ledger.measure(partial(spent, LEDGER))
        ledger = context.ledger
        fence = context.fence
        clock = context.clock
        self.billing = SessionBilling(ledger=ledger, fence=fence, spec=spec, clock=clock, path=price_path(context.home))
        self.guards = Guards(
            ledger=ledger,
            fence=fence,
            spec=spec,
            clock=clock,
            observer=context.observer,
            stops=self.stops,
            billing=self.billing,
        )
        self.gates = Gates(ledger=ledger, fence=fence, spec=spec, clock=clock, billing=self.billing)
        self.deadlines = PhaseDeadlines(context.ledger, context.run, spec.recovery)
        self.prefetch = PlacementPrefetch(find_policy(spec.placement, constants_known(spec)))
        self.threads = DriverThreads(context, trackers or {}, notifier, self._beat)
        self.requested = RequestedCheckpoints(ledger, fence, context.observer)
        self.start = ActorsStart(self.threads.check, self.billing.devices_known)
        self.standby = Standby(self.start, self.billing)
        self.outages = Outages(
            context=context,
            stops=self.stops,
            threads=self.threads,
            standby=self.standby,
            ending=self._ending_now,
            given_back=self._settle_requests,
        )
        self.ledger_outage = LedgerOutage(context, self.stops, self.threads, self.standby)
        self.store_is_ready = True
        """False if the durable tier was away when the session was opened, and is claimed once it answers."""
        self.ahead: dict[int, object] = {}
        """What was collected before its turn, by iteration (`flows.phases.ahead`)."""
        self.trainer_is_ahead = False
        """True if the session recovered with a trainer that has the weights of the next update already."""
        self.ends_at_commit = False
        """True once the session is to end with a checkpoint of the last commit, whose weights must be restored for it."""
        self.begun_until = 0
        """The last iteration that had begun when the session recovered, which its spec may not collect ahead any more."""
        self.own_services: tuple[str, ...] = ()
        """The names of the services that only this run uses."""
        self._has_begun = False
        self.claimed = False
        """True once the flow has taken the session over."""
        self.outcome: SessionOutcome | None = None
        self.failure: BaseException | None = None
        self.enter_branch(context.branch, actors)

    def enter_branch(self, branch: int, actors: RunActors | None = None) -> None:
        """Switches to a branch; the previous branch's actors end when this branch's actors are made ready."""
        self.context = context = replace(self.context, branch=branch)
        self.ahead = {}
        self.begun_until = 0
        folder = context.folder
        fence = context.fence
        self.actors = actors or RunActors(
            spec=context.spec,
            run_folder=folder,
            term=call_term(fence.term),
            branch=branch,
            meter=self.meter,
            interruptions=self.stops,
        )
        self.actors.when_extended(self._extended)
        self.checkpoints = CheckpointKeeper(
            ledger=context.ledger,
            fence=fence,
            actors=self.actors,
            folder=folder,
            spec=context.spec,
            store=context.store,
        )
        self.start.enter_branch(context, self.actors, self.checkpoints)
        self.standby.enter_branch(context, self.actors, self.checkpoints)
        self.outages.enter_branch(context)

    # -- life ---------------------------------------------------------------------------------------------------------

    def book(self, flow_run_id: str, flow_run_name: str) -> None:
        """Records the flow run that drives this session, and marks the run as running, once the ledger answers."""
        while True:
            try:
                self._book(flow_run_id, flow_run_name)
            except LedgerUnavailable as error:
                self.ledger_outage.wait(error)
            else:
                return

    def _book(self, flow_run_id: str, flow_run_name: str) -> None:
        self.context.ledger.leases.start_session(self.context.fence, flow_run_id, flow_run_name)
        self.ledger_outage.committed = self.context.last_commit
        self.outages.over(START)
        self.context.ledger.waits.over(self.context.fence)  # of a driver that was lost while it waited
        set_state(self.context, "running", "")

    def begin_work(self) -> None:
        """Records, once, how long the start took that ends here."""
        if self._has_begun:
            return
        self._has_begun = True  # also if the ledger is away now: a start that waited for it would tell nothing
        usual = self.window is None and not self.waited
        record_start(self.context, self.start, self.own_services, is_usual=usual)

    def already_finished(self) -> SessionOutcome | None:
        """Ends the session at once if the run has already completed; returns None if there is work left."""
        row = self.context.ledger.runs.find(self.context.run)
        if row.state != "completed" or row.iteration < self.context.spec.iterations:
            return None
        self.end("nothing to do")
        return SessionOutcome(
            run=self.context.run,
            state=row.state,
            iteration=row.iteration,
            reason="target reached before",
            exit_code=ExitCode.OK,
        )

    def reached_until(self) -> SessionOutcome | None:
        """Ends the session at once if it is to stop after an iteration that is committed and has its checkpoint."""
        last = self.context.last_commit
        if self._until is None or last < self._until or self.checkpoints.lacks(last):
            return None
        row = self.context.ledger.runs.find(self.context.run)
        self.end("nothing to do")
        return SessionOutcome(
            run=self.context.run,
            state=row.state,
            iteration=last,
            reason=f"iteration {self._until} reached before",
            exit_code=ExitCode.OK,
        )

    @property
    def goal(self) -> int:
        """The iteration after which the session ends: the run's last one, or an earlier one that was asked for."""
        target = self.context.spec.iterations
        return target if self._until is None else min(target, self._until)

    def obstructed(self) -> SessionOutcome | None:
        """Ends the session at once if the run has used up its budget or too many drivers, or stands at a gate.

        Returns None otherwise, and at a gate if the run has no checkpoint of its last commit yet.
        """
        place = self.context.branch, self.context.last_commit
        ending = self.guards.over_budget(place[0], max(0, place[1])) or self._too_many_lost()
        why = "out of budget"
        if ending is None and place[1] >= 0 and not self.checkpoints.lacks(place[1]):
            ending = self.gates.ending(*place)
            why = "at a gate"
        if ending is None:
            return None
        outcome = self.conclude(ending)
        self.end(why)
        return outcome

    def _extended(self, seconds: float) -> None:
        """Lets the current phase take longer, because it has made progress."""
        self.threads.extend(seconds)
        self.guards.extend(seconds)

    def _too_many_lost(self) -> Ending | None:
        context = self.context
        allowed = self.context.spec.recovery.budgets.lost_drivers_per_hour
        since = max(context.clock.time_ms() - HOUR_MS, context.ledger.phases.got_on_at(context.run))
        lost = context.ledger.leases.lost_in_a_row(context.run, DRIVER, since)
        if lost <= allowed:
            return None
        return Ending.of(
            "pause",
            f"{lost} drivers in a row ended within an hour without an error of their own, for example for lack of memory, and "
            "without anything new in between; "
            f"recovery.budgets.lost_drivers_per_hour is {allowed}",
        )

    def round_ended(self, iteration: int, *, is_iteration: bool) -> None:
        """Accounts for the time of a round.

        iteration: the newest commit's.
        is_iteration: False if the round started the actors or recovered, which belongs to no iteration.
        """
        if is_iteration:
            self.trainer_is_ahead = False
            self.profile.close(self.context.folder, self.context.branch, iteration)
        else:
            self.actors.forget_use()
            self.profile.discard()

    def must_restore(self, state: ControlState) -> bool:
        """Returns True if the session is to end and lacks a checkpoint that the trainer, ahead of the commit, cannot take."""
        needs_checkpoint = self.trainer_is_ahead and self.checkpoints.lacks(state.iteration)
        self.ends_at_commit = needs_checkpoint and not self.should_continue(state)
        return self.ends_at_commit

    def close(self, state: ControlState) -> SessionOutcome:
        """Concludes the training loop: takes a last checkpoint, then records the run's state."""
        spec = self.context.spec
        self.threads.allow(3 * spec.recovery.phase_deadline_seconds, "the last checkpoint")
        if self.checkpoints.lacks(state.iteration) and state.iteration >= 0:
            self.context.observer.stage("taking the last checkpoint")
            self.checkpoints.begin(state.iteration)
            self.checkpoints.wait()
        self.requested.settle(self.checkpoints, state.iteration, is_last=True)
        self._promote()
        ending = self._ending(state.iteration)
        if ending is None:
            done = state.iteration >= spec.iterations
            name, reason = ("completed", "target reached") if done else ("stopped", self.stops.reason)
            ending = Ending(name, reason, ExitCode.OK)
        return self.conclude(ending)

    def pause(self, reason: str) -> SessionOutcome:
        """Concludes the training loop by pausing the run until an operator resumes it."""
        self.context.observer.warned(f"paused: {reason}")
        return self.conclude(Ending.of("pause", reason))

    def conclude(self, ending: Ending) -> SessionOutcome:
        """Records how the session ends; the caller must end it."""
        self.outcome = conclude(self.context, ending)
        return self.outcome

    def end_early(self, outcome: str, state: str, reason: str) -> None:
        """Ends the session after an error; a failure to record this must not hide the error."""
        context = self.context
        try:
            if self.outcome is None:
                context.ledger.phases.fail_open(context.fence, redact(reason))
                set_state(context, state, redact(reason))
        except LedgerError as error:
            log.error("could not record in the ledger that the run %s (%s): %s", state, redact(reason), error)
        finally:
            self.end(outcome)

    def end(self, outcome: str) -> None:
        """Ends threads and actors and releases the lease; safe to call however far the session got."""
        ledger = self.context.ledger
        fence = self.context.fence
        self.threads.drain()
        self.start.end()
        self.machine.stop()
        self.threads.end()
        self.tracing.end()
        try:
            seconds = self.context.clock.time_ms() / 1000 - psutil.Process().create_time()
            ledger.events.append(fence.run, SESSION_ENDED, {"term": fence.term, "seconds": seconds}, fence)
            ledger.leases.end_session(fence, outcome)
            ledger.leases.release(fence)
        except LedgerError as error:
            log.warning("could not record the end of term %d in the ledger: %s", fence.term, error)
        ledger.close()

    def back_off(self, failures: int) -> None:
        """Waits before another attempt at a phase: not after its first failure, and longer after each further one.

        A request to stop ends the wait.
        """
        if failures < 2:
            return

        def is_over() -> bool:
            self.threads.check()
            return False

        pause = pause_before(failures - 2, random.random())
        self.threads.allow(pause, "the pause before another attempt")
        wait_unless_stopped(self.stops, self.context.clock, pause, is_over)

    # -- conditions of the loop ---------------------------------------------------------------------------------------

    def should_continue(self, state: ControlState) -> bool:
        """Returns False at the target, and after an operator, a signal, a window or a guard has requested an end."""
        self.threads.check()
        self.ledger_outage.committed = state.iteration
        self._see_requests(self.context.ledger)
        self.requested.settle(self.checkpoints, state.iteration)
        self._promote()
        if self._until is not None and state.iteration >= self._until:
            self.stops.ask(reason=f"asked to stop after iteration {self._until}")
        if self.stops.asked or self._ending(state.iteration) is not None:
            return False
        return state.iteration < self.context.spec.iterations

    def _settle_requests(self) -> None:
        """Records that a request for a checkpoint is met if one of the last commit was taken since."""
        self.requested.settle(self.checkpoints, self.context.last_commit)

    def _promote(self) -> None:
        """Applies the promotion rule to checkpoints that are new, and carries out promotions that were approved."""
        context = self.context
        if context.spec.evaluation.promotion is not None:
            for said in judge_checkpoints(context.ledger, context.fence, context.spec, context.clock.time_ms()):
                context.observer.stage(said)
        if context.spec.gates.promotion is not None:
            settle(context.ledger, context.run)

    def _ending(self, iteration: int) -> Ending | None:
        """Returns how a guard or a gate ends the session after an iteration; None if it may continue."""
        place = self.context.branch, iteration
        return self.guards.ending(*place) or (self.gates.ending(*place) if iteration >= 0 else None)

    @property
    def waited(self) -> dict[str, float]:
        """The metric of the seconds that the session has waited since the last commit, if it has."""
        seconds = self.outages.seconds + self.ledger_outage.seconds
        return {"seconds/waiting": seconds} if seconds else {}

    def accounted(self) -> None:
        """Notes that a commit has the seconds that the session has waited."""
        self.outages.seconds = self.ledger_outage.seconds = 0.0

    def _ending_now(self) -> Ending | None:
        return self._ending(self.ledger_outage.committed)

    def evaluates(self, iteration: int) -> bool:
        """Returns True if the iteration is evaluated on the held-out tasks."""
        spec = self.context.spec
        every = spec.evaluation.every
        return iteration == spec.iterations or (every > 0 and iteration % every == 0)

    def takes_checkpoint(self, iteration: int) -> bool:
        """Returns True if a checkpoint begins in the iteration."""
        return iteration % self.context.spec.checkpoints.every == 0 or self.requested.is_due(iteration)

    def _beat(self, ledger: Ledger) -> None:
        """Checks for stop requests, stalled phases and the deadline, in the thread that renews the lease."""
        self._see_requests(ledger)
        self.guards.look_at_phase(ledger)
        self.guards.look_at_deadline(ledger)

    def _see_requests(self, ledger: Ledger) -> None:
        """Turns an operator's request, or the end of the session's window, into a stop request."""
        context = self.context
        if self.window is not None and self.window.is_over(datetime.fromtimestamp(context.clock.time_ms() / 1000, UTC)):
            self.stops.ask(context.spec.recovery.stop_grace_seconds, f"its window is over: {self.window}")
        if ledger.runs.desired_state(context.run) == "stop":
            self.stops.ask(ledger.runs.stop_deadline(context.run))
