"""The gates of a session: asks what the spec wants to be asked, and ends the session until it is approved.

Consumes where the run is after a commit. Produces questions in the ledger, each with a notification in the same transaction,
and the way in which the session ends. A question that was asked before is read again, so a driver that was killed between the
question and its end neither asks twice nor passes the gate.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

from db.core.approval_rules import APPROVED, PENDING, WITHDRAWN, Approval, standing
from db.core.engine import Fence
from db.ledger import Ledger
from flows.billing.session_billing import SessionBilling
from flows.driver.guards import BY_GUARD, Ending
from flows.driver.spending import Spending
from flows.gates.asking import ask
from flows.gates.waiting import waiting_reason
from flows.run.clock import Clock
from yatt_core.gates.due import PROMOTION, DueGate, RunPosition, due_gates
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")
AUTOMATIC = (BY_GUARD, "non_finite: ")
"""Prefixes of the reasons of branches that no person opened."""
AGAIN = "-again"
"""What precedes the count in the key of a question that is asked anew, because the earlier one was withdrawn."""
FIGURES = ("reward/mean", "evaluation/accuracy", "kl", "entropy")
"""Metrics whose newest values are part of a question's evidence."""


class Gates:
    """The gates of one session.

    billing: what the run is charged.
    """

    def __init__(self, ledger: Ledger, fence: Fence, spec: RunSpec, clock: Clock, billing: SessionBilling) -> None:
        self._ledger = ledger
        self._fence = fence
        self._spec = spec
        self._clock = clock
        self._spending = Spending(ledger, fence, billing, clock) if spec.gates.spending is not None else None
        self._passed: set[str] = set()
        self._opened: dict[int, str] = {}
        self._swept = False

    def ending(self, branch: int, iteration: int) -> Ending | None:
        """Returns how the session must end after an iteration, because of a gate; None if it may continue."""
        found = list(due_gates(self._spec.gates, self._place(branch, iteration)))
        if not self._swept:
            self._withdraw_others({due.key for due in found})
            self._swept = True
        for due in found:
            if due.key in self._passed:
                continue
            approval = self._ask(due, branch, iteration)
            state = standing(approval, self._ledger.approvals.now())
            if state == PENDING:
                return Ending.of("pause", waiting_reason(approval))
            if state != APPROVED:
                return Ending.of("stop", _refusal(approval, self._fence.run))
            self._passed.add(due.key)
        return None

    def _place(self, branch: int, iteration: int) -> RunPosition:
        spent = 0.0 if self._spending is None else self._spending.so_far().device_hours
        return RunPosition(
            branch=branch,
            iteration=iteration,
            target=self._spec.iterations,
            rolled_back=self._rolled_back(branch),
            device_hours=spent,
        )

    def _rolled_back(self, branch: int) -> str:
        """Returns why a branch was opened, if a guard or the failure policy did so; else an empty text."""
        if self._spec.gates.rollback is None or branch == 0:
            return ""
        if branch not in self._opened:
            rows = self._ledger.overview.branches(self._fence.run)
            self._opened |= {row.number: row.reason for row in rows}
        reason = self._opened[branch]
        return reason if reason.startswith(AUTOMATIC) else ""

    def _ask(self, due: DueGate, branch: int, iteration: int) -> Approval:
        """Asks a question, once; returns it with the decision that there is, its deadline's included."""
        run = self._fence.run
        due = self._not_withdrawn(due)
        if self._ledger.approvals.asked(run, due.key) is None:
            log.warning("gate %s: %s", due.kind, due.text)
        newest = self._ledger.metrics.latest(run)
        figures = {key: newest[key].value for key in FIGURES if key in newest}
        evidence = {"branch": branch, "iteration": iteration, **figures}
        return ask(
            ledger=self._ledger,
            run=run,
            spec=self._spec,
            due=due,
            evidence=evidence,
            at_ms=self._clock.time_ms(),
            fence=self._fence,
        )

    def _not_withdrawn(self, due: DueGate) -> DueGate:
        """Returns the question under a key that is not withdrawn: a place at which the run stands again is asked about again."""
        for count in itertools.count(1):
            key = due.key if count == 1 else f"{due.key}{AGAIN}{count}"
            asked = self._ledger.approvals.asked(self._fence.run, key)
            if asked is None or asked.decision != WITHDRAWN:
                return replace(due, key=key)
        raise AssertionError("unreachable")

    def _withdraw_others(self, keys: set[str]) -> None:
        """Closes the run's open questions that are no longer asked: their branch was left, or the spec has changed."""
        for row in self._ledger.approvals.of(self._fence.run):
            if row.decision is None and row.kind != PROMOTION and row.key.partition(AGAIN)[0] not in keys:
                self._ledger.approvals.withdraw(row.id, "the run no longer stands at this gate")


def _refusal(approval: Approval, run: str) -> str:
    return (
        f"approval {approval.id} was {approval.decision} by {approval.decided_by}: {approval.reason}; to go on elsewhere: "
        f"`yatt rollback {run} --to ...`, `yatt fork {run}`, or another `gates` section with `yatt resume {run} --set`"
    )
