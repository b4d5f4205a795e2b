"""How the samples of a batch are distributed over a trainer's ranks."""

from __future__ import annotations

from dataclasses import dataclass


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
