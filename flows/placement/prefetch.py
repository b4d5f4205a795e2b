"""Plans placements in background threads: the first while the actors start, each further one while the trainer learns.

With a lag (`asynchrony.lag`) nothing is learnt between two iterations' experience: a plan is then made while the iteration before
it is collected, from the work that was known when that began.

A policy is a pure function, so a plan made ahead of time is valid as long as its inputs are those of the decision;
otherwise it is discarded. A policy that never returns blocks nothing: its thread is a daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from flows.placement.inputs import DecisionInputs
from yatt_core.errors import StuckError
from yatt_core.placement.seen import IterationTelemetry, PlacementPolicy, Plan


@dataclass(frozen=True, slots=True)
class _Planning:
    """A plan that was begun.

    known: the inputs that its decision would have if it were made when the plan was begun.
    inputs: those from which it is planned; others only if the decision is recorded.
    """

    iteration: int
    known: DecisionInputs
    inputs: DecisionInputs
    plan: Future[Plan]


class PlacementPrefetch:
    """The plans of one policy, made ahead of time if possible."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._ahead: _Planning | None = None
        self._noted: list[tuple[IterationTelemetry, Mapping[str, Any]]] = []

    def note(self, telemetry: IterationTelemetry, name: Mapping[str, Any]) -> None:
        """Takes down the work of an iteration, and its name, for the next plan that is begun behind it (`behind`)."""
        self._noted.append((telemetry, name))

    def forget(self) -> None:
        """Drops what was begun and noted, since the run goes on from another commit."""
        self._ahead = None
        self._noted = []

    def behind(self, inputs: DecisionInputs, state: Mapping[str, Any]) -> DecisionInputs:
        """Returns the inputs of an iteration that is planned while the one before it is collected, with what was noted.

        inputs, state: of the decision of the one before.
        """
        for telemetry, name in self._noted:
            inputs = inputs.after(telemetry, name, state)
        self._noted = []
        return replace(inputs, state=state)

    def begin(self, iteration: int, known: DecisionInputs, recorded: DecisionInputs | None = None) -> None:
        """Starts planning an iteration.

        known: the expected inputs of its decision.
        recorded: the inputs from which its decision is planned again, if it is recorded.
        """
        self._ahead = self._planning(iteration, known, recorded or known)

    def expected(self, iteration: int) -> DecisionInputs | None:
        """Returns what was known when the plan of an iteration was begun; None if it was not."""
        return self._ahead.known if self._ahead is not None and self._ahead.iteration == iteration else None

    def plan(self, iteration: int, inputs: DecisionInputs, within_seconds: float) -> Plan:
        """Returns the plan for these inputs, made ahead of time or now.

        Raises what the policy raises, and `StuckError` if there is no plan within `within_seconds`.
        """
        planning = self._ahead
        self._ahead = None
        if planning is None or planning.inputs != inputs:
            planning = self._planning(iteration, inputs, inputs)
        try:
            return planning.plan.result(within_seconds)
        except TimeoutError:
            raise StuckError(f"placement.mode: the policy made no plan within {within_seconds:g} s") from None

    def _planning(self, iteration: int, known: DecisionInputs, inputs: DecisionInputs) -> _Planning:
        made: Future[Plan] = Future()

        def work() -> None:
            try:
                made.set_result(inputs.plan(self._policy))
            except BaseException as error:  # noqa: BLE001 - raised again in `plan`
                made.set_exception(error)

        threading.Thread(target=work, name="placement", daemon=True).start()
        return _Planning(iteration, known, inputs, made)
