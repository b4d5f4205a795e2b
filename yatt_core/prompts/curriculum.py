"""A curriculum: which share of the draws each pool of prompts gets, and which prompts are solved. A pure state machine.

Consumes the pools of a run's inputs, and after each iteration how many responses to each of its prompts were correct.
Produces the shares of the next draws and the prompts that are left out of them. The state is part of the cursor, so that
it is in each commit and in the plan of each wave: draws are functions of the cursor, whenever and wherever they are made.

A pool's rate is a moving average of its success rate; r <- decay x r + (1 - decay) x observed. With w the weight of its
source times its part of the source, its share is proportional to w x max(0, 1 - |r - target| / max(target, 1 - target)),
within the bounds. A pool without a rate counts as being at the target, and one whose prompts are all solved gets no share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from yatt_core.protocols.receipts import PromptPool
from yatt_core.spec.sections.curriculum import CurriculumSpec

NEVER = 0
"""Stands for the iteration of a prompt's return if it does not return."""
STEPS = 200
"""Halvings of an interval of floating-point numbers, after which it is as small as it can be."""
NEGLIGIBLE = 1e-12
"""What is wanted less than this part of the most wanted counts as not wanted."""


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """The responses to a drawn prompt.

    row: its row in the pool.
    success: fraction of correct responses.
    """

    pool: int
    row: int
    success: float


@dataclass(frozen=True, slots=True)
class CurriculumPool:
    """A pool.

    size: number of its prompts.
    weight: its share without a curriculum, up to a factor.
    rate: moving average of the success rate; None until there is one.
    share: its share of the next draws.
    solved: rows that are not drawn, and the iteration from which they are drawn again, or `NEVER`.
    """

    name: str
    size: int
    weight: float
    rate: float | None = None
    share: float = 0.0
    solved: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """True if the pool has prompts to draw."""
        return len(self.solved) < self.size

    def to_json(self) -> dict[str, Any]:
        """Returns plain values; the rows that never return are bits of a hexadecimal number."""
        bits = 0
        returning = defaultdict[str, list[int]](list)
        for row, due in sorted(self.solved.items()):
            if due == NEVER:
                bits |= 1 << row
            else:
                returning[str(due)].append(row)
        plain = {"name": self.name, "size": self.size, "weight": self.weight, "rate": self.rate, "share": self.share}
        return plain | {"solved": f"{bits:x}", "returning": dict(returning)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Returns the pool that `to_json` wrote."""
        bits = int(value["solved"], 16)
        solved = {}
        while bits:
            lowest = bits & -bits
            solved[lowest.bit_length() - 1] = NEVER
            bits ^= lowest
        solved |= {row: int(due) for due, rows in value["returning"].items() for row in rows}
        return cls(
            name=value["name"],
            size=value["size"],
            weight=value["weight"],
            rate=value["rate"],
            share=value["share"],
            solved=solved,
        )


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The state of all pools."""

    pools: tuple[CurriculumPool, ...]

    @classmethod
    def start(cls, spec: CurriculumSpec, pools: Sequence[PromptPool], weights: Sequence[float]) -> Self:
        """Returns the state before the first draw.

        weights: the weight of each source.
        """
        totals: defaultdict[int, int] = defaultdict(int)
        for pool in pools:
            totals[pool.source] += pool.size
        states = [CurriculumPool(p.name, p.size, weights[p.source] * p.size / totals[p.source]) for p in pools]
        return cls(_shared(spec, states))

    @property
    def shares(self) -> tuple[float, ...]:
        """Each pool's share of the next draws; positive for each pool that is drawn from."""
        return tuple(pool.share for pool in self.pools)

    def rests(self, pool: int, row: int) -> bool:
        """Returns True for a solved prompt, which is not drawn."""
        return row in self.pools[pool].solved

    def after(self, spec: CurriculumSpec, iteration: int, outcomes: Iterable[PromptOutcome]) -> Self:
        """Returns the state after an iteration, whatever the order of the outcomes.

        If all prompts of all pools are solved, all of them return.
        """
        by_pool: defaultdict[int, list[PromptOutcome]] = defaultdict(list)
        for outcome in outcomes:
            by_pool[outcome.pool].append(outcome)
        states = [_advanced(state, spec, iteration, by_pool[number]) for number, state in enumerate(self.pools)]
        if not any(state.is_open for state in states):
            states = [replace(state, solved={}) for state in states]
        return replace(self, pools=_shared(spec, states))

    def to_json(self) -> list[dict[str, Any]]:
        """Returns plain values for the cursor."""
        return [pool.to_json() for pool in self.pools]

    @classmethod
    def from_json(cls, value: Sequence[Mapping[str, Any]]) -> Self:
        """Returns the state that `to_json` wrote."""
        return cls(tuple(CurriculumPool.from_json(each) for each in value))

    def metrics(self) -> dict[str, float]:
        """Returns each pool's share of the next draws, its number of solved prompts and, if it has one, its rate."""
        values: dict[str, float] = {}
        for pool in self.pools:
            prefix = f"curriculum/{pool.name}"
            values |= {f"{prefix}/share": pool.share, f"{prefix}/solved": float(len(pool.solved))}
            values |= {} if pool.rate is None else {f"{prefix}/success": pool.rate}
        return values


def _advanced(
    state: CurriculumPool, spec: CurriculumSpec, iteration: int, outcomes: Sequence[PromptOutcome]
) -> CurriculumPool:
    """Returns a pool with its new rate and solved prompts, but its old share."""
    rate = state.rate
    if outcomes:
        seen = math.fsum(outcome.success for outcome in outcomes) / len(outcomes)
        rate = seen if rate is None else spec.decay * rate + (1 - spec.decay) * seen
    solved = {row: due for row, due in state.solved.items() if due == NEVER or due > iteration + 1}
    if spec.retire is not None:
        due = NEVER if spec.retire.return_after is None else iteration + 1 + spec.retire.return_after
        solved |= {outcome.row: due for outcome in outcomes if outcome.success >= spec.retire.at}
    return replace(state, rate=rate, solved=solved)


def _shared(spec: CurriculumSpec, states: Sequence[CurriculumPool]) -> tuple[CurriculumPool, ...]:
    """Returns the pools with the shares that follow from their rates."""
    reach = max(spec.target, 1 - spec.target)
    wanted = [
        state.weight * (1.0 if state.rate is None else max(0.0, 1 - abs(state.rate - spec.target) / reach))
        for state in states
        if state.is_open
    ]
    shares = iter(bounded_shares(wanted, spec.min_share, spec.max_share))
    return tuple(replace(state, share=next(shares) if state.is_open else 0.0) for state in states)


def bounded_shares(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Returns shares that add up to 1 and are proportional to the wanted ones, except for those at a bound.

    low, high: bounds of a share; equal shares are always within them. If nothing is wanted, shares are equal.
    """
    equal = 1 / len(wanted)
    low = min(low, equal)
    high = max(high, equal)
    if not any(wanted):
        return [equal] * len(wanted)
    largest = max(wanted)
    relative = [value / largest if value > largest * NEGLIGIBLE else 0.0 for value in wanted]

    def scaled(factor: float) -> list[float]:
        return [min(high, max(low, value * factor)) for value in relative]

    # The sum grows with the factor: at 0 it is at most 1, and where all positive values are at the upper bound it is
    # at least 1, unless the lower bound takes what is left.
    smallest = min(value for value in relative if value > 0)
    below = 0.0
    above = high / smallest
    if math.fsum(scaled(above)) <= 1:
        return _filled(scaled(above), low, high)
    for _ in range(STEPS):
        middle = (below + above) / 2
        if math.fsum(scaled(middle)) <= 1:
            below = middle
        else:
            above = middle
    return _filled(scaled(below), low, high)


def _filled(shares: list[float], low: float, high: float) -> list[float]:
    """Returns the shares with what is missing from 1 given to those below the upper bound, in equal parts."""
    for _ in shares:  # each pass fills at least one share up to the bound, or is the last
        missing = 1 - math.fsum(shares)
        room = [number for number, share in enumerate(shares) if share < high]
        if missing <= 0 or not room:
            break
        for number in room:
            shares[number] = min(high, max(low, shares[number] + missing / len(room)))
    return shares
