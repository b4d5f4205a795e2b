"""Plans the next iteration's placement in a thread, while the trainer learns from this one.

A policy is a pure function, so that a plan made ahead is the plan; one made from other inputs than turn out is thrown away.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from flows.placement_inputs import Inputs
from yatt_core.placement.seen import PlacementPolicy, Plan


@dataclass(frozen=True, slots=True)
class _Ahead:
    inputs: Inputs
    plan: Future[Plan]


class Foresight:
    """Plans of one policy."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._ahead: _Ahead | None = None

    def begin(self, inputs: Inputs) -> None:
        """Begins to plan with what the next decision will be made from, as far as one can tell."""
        executor = ThreadPoolExecutor(1, "placement")
        self._ahead = _Ahead(inputs, executor.submit(inputs.plan, self._policy))
        executor.shutdown(wait=False)

    def plan(self, inputs: Inputs) -> Plan:
        """The plan of these inputs, from ahead or made now. Raises as `Inputs.plan`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.inputs == inputs:
            return ahead.plan.result()
        return inputs.plan(self._policy)
