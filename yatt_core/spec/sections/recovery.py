"""How failures are noticed and answered, and how long things are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel


class BudgetSpec(SpecModel):
    """Attempts that a phase may use up, by class of failure; charged when it is dispatched."""

    infrastructure: PositiveInt = 3
    """For processes, machines, networks and disks that fail."""
    data: PositiveInt = 1
    """For input and reward functions that fail: trying again gives the same failure."""
    numeric: PositiveInt = 1
    """For replays that differ, and for a loss or gradient that is not finite: behind it, `on_non_finite` is the answer."""


class RecoverySpec(SpecModel):
    """How failures are noticed and answered."""

    phase_deadline_seconds: PositiveFloat = 600.0
    """A phase that takes longer has failed; the deadline while it has no history of its own, and the longest there is."""
    deadline_factor: float = Field(default=5.0, ge=2.0)
    """A phase has failed once it takes so many times the longest of its last twenty."""
    deadline_floor_seconds: PositiveFloat = 60.0
    """No deadline from history is shorter."""
    lease_seconds: float = Field(default=10.0, ge=1.0)
    """Life of the lease; renewed five times as often."""
    grace_seconds: PositiveFloat = 120.0
    """How long the run's cluster waits for a new driver after the last one went away."""
    ledger_wait_seconds: PositiveFloat = 120.0
    """How long a driver waits for a ledger that does not answer, doing nothing meanwhile."""
    stop_grace_seconds: PositiveFloat | None = None
    """A signal to stop, or the end of a window, ends the session within so many seconds, if need be between two phases; `null`:
    behind the iteration."""
    on_non_finite: Literal["skip", "rollback", "pause", "stop"] = "skip"
    """Answer to a loss or gradient that is not finite: skip the update, go back to a checkpoint and draw other prompts, pause
    the run, or stop it as failed."""
    non_finite_limit: PositiveInt = 3
    """Skips and rollbacks in a row, behind which the run pauses."""
    quarantine_after: PositiveInt = 3
    """Actors lost on a node within `quarantine_seconds`, behind which the run does not use it, while there are others."""
    quarantine_seconds: PositiveFloat = 3600.0
    """How long a lost actor counts against its node."""
    budgets: BudgetSpec = BudgetSpec()


class RetentionSpec(SpecModel):
    """How long the run's files are kept."""

    experience: Literal["all", "needed"] = "all"
    """`needed`: experience older than every checkpoint that may be gone back to is deleted; its digests stay in the ledger."""
