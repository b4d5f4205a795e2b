"""How failures are detected and handled, when checkpoints are taken, and how long files are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.errors import FailureClass
from yatt_core.spec.base import SpecModel


class CheckpointSpec(SpecModel):
    """When checkpoints are taken and how many are kept."""

    every: PositiveInt = 20
    """Iterations between checkpoints; one is also taken at a graceful stop and at the end of the run."""
    keep: PositiveInt = 2
    """Number of recent checkpoints to keep, in addition to the checkpoint of iteration 0."""


class BudgetSpec(SpecModel):
    """Attempts allowed per phase, by class of failure, charged when an attempt is dispatched; and lost drivers.

    What happened before the run last committed an iteration or sealed a shard no longer counts; nor do drivers that were
    lost before it last completed a phase of its iteration for the first time.
    """

    infrastructure: PositiveInt = 3
    """For failures of machines, networks, disks and libraries, and for work that is not finished in time."""
    lost_actors: PositiveInt = 10
    """For actors whose processes are gone, such as by SIGKILL, for lack of memory, or with their node."""
    data: PositiveInt = 1
    """For failures of input data and reward functions; another attempt fails the same way."""
    numeric: PositiveInt = 1
    """For replays that differ and for losses or gradients that are not finite; once the budget is exhausted,
    `on_non_finite` applies."""
    lost_drivers_per_hour: PositiveInt = 10
    """Drivers in a row that may end without an error of their own, such as by SIGKILL or with their machine. The next
    one pauses the run. They are not charged to the phase that they were in."""

    def attempts(self, failure_class: FailureClass) -> int:
        """Returns the number of attempts that errors of a class may use up."""
        return {
            FailureClass.INFRASTRUCTURE: self.infrastructure,
            FailureClass.ACTOR_LOST: self.lost_actors,
            FailureClass.DATA: self.data,
            FailureClass.NUMERIC: self.numeric,
        }.get(failure_class, 1)


class RecoverySpec(SpecModel):
    """How failures are detected and handled."""

    phase_deadline_seconds: PositiveFloat = 600.0
    """Maximum time that a phase may take, or go without progress: actors report each optimizer micro-batch and decode
    step. It is the deadline until the phase has a history, and an upper limit afterwards."""
    deadline_factor: float = Field(default=5.0, ge=2.0)
    """A phase has failed if it takes this many times as long as the longest of its last 20 executions."""
    deadline_floor_seconds: PositiveFloat = 60.0
    """Minimum deadline derived from history."""
    lease_seconds: float = Field(default=10.0, ge=1.0)
    """Lifetime of the lease, which is renewed five times per lifetime."""
    grace_seconds: PositiveFloat = 120.0
    """How long the run's cluster waits for a new driver after the last one has disconnected."""
    wait_hours: PositiveFloat = 2.0
    """How long a run waits for something outside of YATT that is away, such as the endpoint of a judge; then it pauses."""
    hold_minutes: float = Field(default=5.0, ge=0.0)
    """How long a run that waits keeps its devices. Then it takes a checkpoint, gives them back, and takes them again once
    what it waits for answers."""
    ledger_wait_seconds: PositiveFloat | None = None
    """How long a driver waits for an unresponsive ledger; it does no other work meanwhile. `null`: for `wait_hours`."""
    stop_grace_seconds: PositiveFloat | None = None
    """Maximum time that a session continues after a stop signal or the end of a window; it may then end between
    two phases. `null`: it ends after the current iteration."""
    on_non_finite: Literal["skip", "rollback", "pause", "stop"] = "skip"
    """What to do if a loss or gradient is not finite: skip the update, roll back to a checkpoint and draw other
    prompts, pause the run, or stop it as failed."""
    non_finite_limit: PositiveInt = 3
    """Number of consecutive skips and rollbacks after which the run pauses."""
    quarantine_after: PositiveInt = 3
    """Number of actors lost on a node within `quarantine_seconds`, without anything new sealed or committed in between,
    after which the run avoids the node, as long as there are others."""
    quarantine_seconds: PositiveFloat = 3600.0
    """How long a lost actor counts against its node."""
    budgets: BudgetSpec = BudgetSpec()


class RetentionSpec(SpecModel):
    """How long the run's files are kept."""

    experience: Literal["all", "needed"] = "all"
    """`needed`: experience older than every checkpoint to which the run may roll back is deleted; its digests stay
    in the ledger."""
