"""How the samples of a batch are distributed over a trainer's ranks."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.engines.train.steps.plan import PlanShape
from yatt_core.spec.run import RunSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """How samples are distributed.

    ranks: number of processes.
    copies: number of copies of the model, each of which learns from its own part of the samples.
    budget: maximum number of tokens of a micro-batch.
    packed, even: as in `PlanShape`.
    """

    ranks: int
    copies: int
    budget: int
    packed: bool = False
    even: bool = False

    def shape(self, spec: RunSpec) -> PlanShape:
        """Returns what shapes the plan of an iteration's steps."""
        return PlanShape(
            ranks=self.copies,
            budget=self.budget,
            epochs=spec.epochs,
            mini_batches=spec.mini_batches,
            packed=self.packed,
            even=self.even,
        )
