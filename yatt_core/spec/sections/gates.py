"""The gates of a run: where it waits until somebody approves that it goes on, who may do so, and what happens otherwise.

There is no gate by default.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel


class GateSpec(SpecModel):
    """A question that people decide."""

    names: tuple[str, ...] = ()
    """People who may decide, if their role is approver or admin: names of users, or of tokens without a user."""
    roles: tuple[Literal["approver", "admin"], ...] = ()
    """Roles whose holders may decide; an admin holds both. Without names and roles, everyone with the role approver may."""
    deadline_hours: PositiveFloat | None = None
    """Hours after which `default` decides. `null`: the question stays open."""
    default: Literal["approve", "reject"] = "reject"
    """What the deadline decides."""


class IterationsGate(GateSpec):
    """Waits for approval after every n iterations."""

    every: PositiveInt
    """Iterations between two questions; there is none at the end of the run."""


class RollbackGate(GateSpec):
    """Waits for approval after a guard, or an update that is not finite, has rolled the run back."""


class SpendingGate(GateSpec):
    """Waits for approval each time that the run has used so many device hours more."""

    device_hours: PositiveFloat
    """Device hours between two questions, as `guards.budget.device_hours` counts them."""


class PromotionGate(GateSpec):
    """A checkpoint becomes champion once somebody approves; the run does not wait for it."""


class GatesSpec(SpecModel):
    """Where the run waits for approval. At a gate the session ends with a checkpoint and holds no device."""

    iterations: IterationsGate | None = None
    rollback: RollbackGate | None = None
    spending: SpendingGate | None = None
    promotion: PromotionGate | None = None
    links: bool = False
    """Whether notifications of a question have a signed link that decides it without signing in. Whoever can read the
    notification can then decide."""
    link_hours: PositiveFloat = Field(default=72.0, le=8760.0)
    """Hours for which such a link is valid."""
