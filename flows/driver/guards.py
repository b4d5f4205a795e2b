"""The guards of a session: judge each iteration before its commit, and watch for stalled phases and used-up budgets.

Consumes the metrics of an iteration and, when a session continues from a commit, those of earlier iterations from the
ledger. Produces alarms with their evidence. An alarm is recorded before anyone acts on it, so a recovering driver
finds in the ledger what remains to be done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.alarms import ALERT, ROLLBACK, AlarmRow
from db.write.metrics import Metric
from db.write.outbox import OutboxEntry
from flows.billing.session_billing import SessionBilling
from flows.delivery.notifications import alarm_entry
from flows.driver.budgets import Budgets
from flows.driver.stopping import StopRequests
from flows.driver.target_deadline import TargetDeadline
from flows.run.clock import Clock
from flows.run.protocols import Observer
from yatt_core.errors import ExitCode
from yatt_core.guards.budget import BUDGET
from yatt_core.guards.deadline import DEADLINE
from yatt_core.guards.findings import Alarm
from yatt_core.guards.judging import GuardEvaluator, History
from yatt_core.guards.stalls import PhaseUnderWay
from yatt_core.run_actors.process_use import process_names
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")
BY_GUARD = "guard "
"""Prefix of the reason recorded for a branch that a guard opened."""
STRENGTH = (ROLLBACK, "pause", "stop")
"""Actions, weakest first. Of several requested actions the strongest applies."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a guard ends a session.

    state: the state in which the run is left.
    exit_code: the exit code of the command that drives the session.
    """

    state: str
    reason: str
    exit_code: int

    @classmethod
    def of(cls, action: str, reason: str) -> Ending:
        """Returns the ending for the action `pause` or `stop`."""
        return cls("paused", reason, ExitCode.PAUSED) if action == "pause" else cls("stopped", reason, ExitCode.OK)


@dataclass(frozen=True, slots=True)
class JudgedIteration:
    """The guards' verdict on an iteration, for its commit.

    since: for each rule that has raised an alarm, the iteration of the last one.
    """

    since: Mapping[str, int]
    alarms: tuple[Mapping[str, Any], ...]
    entries: tuple[OutboxEntry, ...]


class Guards:
    """The guards of one session.

    stops: receives a stop request if the session should end without waiting for the current phase.
    billing: what the run is charged, for its budgets.
    """

    def __init__(
        self,
        ledger: Ledger,
        fence: Fence,
        spec: RunSpec,
        clock: Clock,
        observer: Observer,
        stops: StopRequests,
        billing: SessionBilling,
    ) -> None:
        self._ledger = ledger
        self._fence = fence
        self._spec = spec
        self._clock = clock
        self._observer = observer
        self._stops = stops
        self._judge = GuardEvaluator(spec.guards, spec.rollout, spec.replays_support, process_names(spec))
        self._history = History.of(self._judge.rules)
        self._place = (-1, -1)
        self._budgets = Budgets(ledger=ledger, fence=fence, spec=spec, clock=clock, billing=billing)
        self._deadline = TargetDeadline(ledger, fence.run, spec, clock)
        self._told: set[str] = set()
        self._under_way: tuple[int, PhaseUnderWay] | None = None
        self._stalled: PhaseUnderWay | None = None
        self.look_up()

    def look_up(self) -> None:
        """Reads the alarms whose action is still pending from the ledger."""
        self._asked = self._open_in(self._ledger)

    def _open_in(self, ledger: Ledger) -> list[AlarmRow]:
        """Returns the unanswered alarms, except those of budget and deadline, which are checked anew each time."""
        return [row for row in ledger.alarms.unanswered(self._fence.run) if row.rule not in (BUDGET, DEADLINE)]

    # -- an iteration -------------------------------------------------------------------------------------------------

    def judge(
        self, branch: int, iteration: int, since: Mapping[str, int], metrics: Sequence[Metric]
    ) -> JudgedIteration:
        """Judges an iteration that is about to be committed.

        since: the value of `JudgedIteration.since` in the last commit.
        """
        known = self._history if self._place == (branch, iteration - 1) else self._known()
        self._history = known.extended(iteration, {metric.key: metric.value for metric in metrics})
        self._place = (branch, iteration)
        judged = self._judge.judge(self._history, iteration, since)
        bodies = tuple(alarm.body(self._fence.run, branch, iteration) for alarm in judged.alarms)
        return JudgedIteration(judged.since, bodies, tuple(entry for body in bodies for entry in self._entries(body)))

    def _known(self) -> History:
        """Returns the rules' history on the current line, up to its latest commit."""
        empty = History.of(self._judge.rules)
        newest = self._ledger.metrics.newest
        return empty.filled({key: newest(self._fence.run, key, depth) for key, depth in empty.depths.items()})

    def committed(self, judged: JudgedIteration) -> None:
        """Reports an iteration's alarms, now that they are in the ledger."""
        for body in judged.alarms:
            self._say(body)
        if any(body["action"] != ALERT for body in judged.alarms):
            self.look_up()

    def report(self, alarm: Alarm, branch: int, iteration: int, ledger: Ledger | None = None) -> None:
        """Raises an alarm outside a commit, unless the ledger already has it.

        ledger: the calling thread's connection.
        """
        ledger = ledger or self._ledger
        body = alarm.body(self._fence.run, branch, iteration)
        if ledger.alarms.record(self._fence, body, self._entries(body)):
            self._say(body)

    def _entries(self, body: Mapping[str, Any]) -> list[OutboxEntry]:
        return [] if self._spec.guards.notify is None else [alarm_entry(body, self._clock.time_ms())]

    def _say(self, body: Mapping[str, Any]) -> None:
        log.warning("alarm %s, %s: %s", body["rule"], body["action"], body["text"])
        self._observer.warned(f"guard {body['rule']} ({body['action']}): {body['text']}")

    # -- a phase ------------------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, branch: int, iteration: int, name: str, attempt: int, deadline: float) -> Iterator[None]:
        """Marks an attempt at a phase as in progress, so that a stall can be noticed."""
        self._under_way = (
            branch,
            PhaseUnderWay(
                iteration=iteration, phase=name, attempt=attempt, started=self._clock.monotonic(), deadline=deadline
            ),
        )
        try:
            yield
        finally:
            self._under_way = None

    def extend(self, seconds: float) -> None:
        """Moves the deadline of the phase in progress, which has made progress."""
        if self._under_way is not None:
            branch, phase = self._under_way
            self._under_way = branch, replace(phase, deadline=phase.deadline + seconds)

    def look_at_phase(self, ledger: Ledger) -> None:
        """Raises an alarm, once per attempt, if the current phase has stalled; called by the lease thread."""
        under_way = self._under_way
        guard = self._spec.guards.stalled_phase
        if under_way is None or guard is None or under_way[1] is self._stalled:
            return
        branch, attempt = under_way
        alarm = attempt.alarm(guard, self._clock.monotonic())
        if alarm is None:
            return
        self.report(alarm, branch, attempt.iteration, ledger)
        self._stalled = attempt
        if alarm.action != ALERT:
            self._asked = self._open_in(ledger)
            self._stops.ask(0.0)

    # -- what is asked for --------------------------------------------------------------------------------------------

    def ending(self, branch: int, iteration: int) -> Ending | None:
        """Returns how the session must end after an iteration; None if it may continue."""
        strongest = self._strongest()
        if strongest is not None and strongest.action != ROLLBACK:
            return Ending.of(strongest.action, f"guard {strongest.rule}: {strongest.text}")
        return self.over_budget(branch, iteration)

    def over_budget(self, branch: int, iteration: int) -> Ending | None:
        """Returns how the session must end because a budget is used up or the deadline has passed; None if it may continue.

        Raises one alarm for each limit that was reached or nearly reached, and for a deadline that will be missed.
        """
        if iteration >= self._spec.iterations:
            return None
        ending = None
        for alarm in (*self._budgets.alarms(iteration), *self._deadline.alarms(branch, iteration)):
            self._report_once(alarm, branch, iteration)
            if alarm.action != ALERT:
                ending = Ending.of(alarm.action, f"guard {alarm.rule}: {alarm.finding.text}")
        return ending

    def look_at_deadline(self, ledger: Ledger) -> None:
        """Raises an alarm, once, if the deadline will be missed or has passed; called by the lease thread."""
        for branch, iteration, alarm in self._deadline.under_way():
            self._report_once(alarm, branch, iteration, ledger)
            if alarm.action != ALERT:
                self._stops.ask(reason=alarm.finding.text)

    def _report_once(self, alarm: Alarm, branch: int, iteration: int, ledger: Ledger | None = None) -> None:
        if alarm.name not in self._told:
            self.report(alarm, branch, iteration, ledger)
            self._told.add(alarm.name)

    def to_roll_back(self) -> AlarmRow | None:
        """Returns the alarm that requests a rollback; None if there is none, or if a stronger action is requested."""
        strongest = self._strongest()
        return strongest if strongest is not None and strongest.action == ROLLBACK else None

    def _strongest(self) -> AlarmRow | None:
        return max(self._asked, key=lambda row: STRENGTH.index(row.action), default=None)
