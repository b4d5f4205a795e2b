"""Columns that go from the ranks that have computed them to those that need them, each value once to each rank.

Consumes a column over the whole batch, of which a rank knows the values of its own part of a plan. Produces the same column
with the values of all parts, or of the rank's part of another plan, and with zeros elsewhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plan import StepPlan
from yatt_core.wire.ragged import Array, ragged_positions

Int64 = npt.NDArray[np.int64]


def samples_of(plan: StepPlan, part: int) -> Int64:
    """Returns the indices of a part's samples, ascending."""
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *plan.parts[part]]))


def shared(collective: Collective, plan: StepPlan, offsets: Int64, values: Array) -> Array:
    """Returns the values of all parts, on every rank.

    offsets: [N + 1], where the entries of each sample begin in the column.
    values: [entries, ...], the column; entries of samples that are not in this rank's part of the plan are ignored.
    """
    if collective.world.ranks == 1:
        return values
    seats = collective.seats()
    own = values[ragged_positions(offsets, samples_of(plan, collective.rank))]
    received = collective.gathered(own.tobytes() if collective.speaks else b"")
    found = np.zeros_like(values)
    for seat, data in zip(seats, received, strict=True):
        if seat.speaks:
            _place(found, ragged_positions(offsets, samples_of(plan, seat.part)), data)
    return _summed(found)


def moved(collective: Collective, plan: StepPlan, to: StepPlan, offsets: Int64, values: Array) -> Array:
    """Returns the values of this rank's part of the plan `to`, as computed on the parts of another plan.

    Arguments as for `shared`.
    """
    if collective.world.ranks == 1:
        return values
    seats = collective.seats()
    given = [samples_of(plan, part) for part in range(collective.ranks)]
    wanted = [samples_of(to, part) for part in range(collective.ranks)]

    def common(giver: int, taker: int) -> Int64:
        return ragged_positions(offsets, np.intersect1d(given[giver], wanted[taker], assume_unique=True))

    outgoing = [values[common(collective.rank, seat.part)].tobytes() if collective.speaks else b"" for seat in seats]
    found = np.zeros_like(values)
    for seat, data in zip(seats, collective.exchanged(outgoing), strict=True):
        if seat.speaks:
            _place(found, common(seat.part, collective.rank), data)
    return _summed(found)


def _place(values: Array, positions: Int64, data: bytes | bytearray) -> None:
    values[positions] = np.frombuffer(data, values.dtype).reshape(len(positions), *values.shape[1:])


def _summed(values: Array) -> Array:
    """Returns the values as a sum over the ranks would have them: no zero is negative."""
    summed: Array = values + values.dtype.type(0)
    return summed
