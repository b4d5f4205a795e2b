"""Plans placements in threads: the next iteration's while the trainer learns from this one.

A policy is a pure function, so that a plan made ahead is the plan; one made from other inputs than turn out is thrown away. A
policy that finds no end is not waited for: its thread keeps nobody from ending.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from flows.placement.inputs import Inputs
from yatt_core.errors import StuckError
from yatt_core.placement.seen import PlacementPolicy, Plan


@dataclass(frozen=True, slots=True)
class _Planning:
    inputs: Inputs
    plan: Future[Plan]


class PlacementPrefetch:
    """Plans of one policy."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._ahead: _Planning | None = None

    def begin(self, inputs: Inputs) -> None:
        """Begins to plan with what the next decision will be made from, as far as one can tell."""
        self._ahead = self._planning(inputs)

    def plan(self, inputs: Inputs, within_seconds: float) -> Plan:
        """The plan of these inputs, from ahead or made now. Raises what the policy raises, and `StuckError` past the time."""
        planning, self._ahead = self._ahead, None
        if planning is None or planning.inputs != inputs:
            planning = self._planning(inputs)
        try:
            return planning.plan.result(within_seconds)
        except TimeoutError:
            raise StuckError(f"placement.mode: its policy has made no plan in {within_seconds:g} s") from None

    def _planning(self, inputs: Inputs) -> _Planning:
        made: Future[Plan] = Future()

        def work() -> None:
            try:
                made.set_result(inputs.plan(self._policy))
            except BaseException as error:  # noqa: BLE001 - it is raised again where the plan is waited for
                made.set_exception(error)

        threading.Thread(target=work, name="placement", daemon=True).start()
        return _Planning(inputs, made)
