"""Decides which gates a run stands at. Pure: consumes the spec and where the run is; produces what is to be asked.

A question's key names the place at which it is asked, so that a driver that was killed asks the same question again:

    iterations   branch and iteration
    rollback     the branch that the rollback opened
    spending     the amount of device hours that was passed
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from yatt_core.spec.sections.gates import GateSpec, GatesSpec

ITERATIONS = "iterations"
ROLLBACK = "rollback"
SPENDING = "spending"
PROMOTION = "promotion"
"""The kinds of gates, which are their keys in the spec."""


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Where a run is, after a commit.

    iteration: the last committed iteration.
    target: the run's last iteration.
    rolled_back: why the branch was opened, if a guard or the failure policy did so; else empty.
    device_hours: what the run has used so far.
    """

    branch: int
    iteration: int
    target: int
    rolled_back: str
    device_hours: float


@dataclass(frozen=True, slots=True)
class DueGate:
    """A gate that the run stands at, and the question to be asked."""

    kind: str
    key: str
    text: str
    gate: GateSpec


def due_gates(gates: GatesSpec, place: RunPosition) -> Iterator[DueGate]:
    """Yields the gates that the run stands at, the same ones each time for the same place."""
    if place.iteration >= place.target:
        return
    where = f"iteration {place.iteration} of branch {place.branch}"
    if gates.rollback is not None and place.rolled_back:
        text = f"continue on branch {place.branch}, which was opened by a rollback ({place.rolled_back})?"
        yield DueGate(ROLLBACK, f"rollback-b{place.branch}", text, gates.rollback)
    if gates.iterations is not None and place.iteration > 0 and place.iteration % gates.iterations.every == 0:
        text = f"continue after {where}, of {place.target} iterations?"
        yield DueGate(ITERATIONS, f"iterations-b{place.branch}-i{place.iteration}", text, gates.iterations)
    if gates.spending is not None and (passed := math.floor(place.device_hours / gates.spending.device_hours)):
        amount = passed * gates.spending.device_hours
        text = f"continue after {where}? The run has used {amount:g} device hours"
        yield DueGate(SPENDING, f"spending-{amount:g}", text, gates.spending)
