"""The contract between the owner of several runs (a soup, a sweep) and what drives them side by side.

Consumes runs of the ledger; produces what they have reached, and the goals of those that are not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from db.ledger import Ledger

Goals = Callable[[], Mapping[str, int]]
"""Returns the runs to drive, most urgent first, each with the iteration that it is to reach; empty once none is left.

It is asked again whenever a driver ends, since what a run has reached may call for more. A run that is a goal still, although
its driver has ended before the iteration, has ended too early.
"""
Tell = Callable[[str], None]
"""Receives each step as words, for people."""


class Drives(Protocol):
    """Drives runs until no goals are left, side by side if it can.

    Raises `InfrastructureError` if a run ends too early, once the other drivers have ended, and `KeyboardInterrupt` once all
    have stopped on request.
    """

    def __call__(self, goals: Goals) -> None: ...


def reached(ledger: Ledger, run: str) -> int:
    """Returns the newest iteration that a run has committed and, if its session ended there, has a checkpoint of.

    A session takes its last checkpoint after its last commit. If it is killed in between, the next session takes the
    checkpoint, and only then can the weights be merged, exported or evaluated.
    """
    row = ledger.runs.find(run)
    if row.state == "completed" or any(kept.is_meant(row.iteration) for kept in ledger.records.checkpoints(run)):
        return row.iteration
    return row.iteration - 1


def goals_of(ledger: Ledger, runs: Sequence[str], until: int) -> Goals:
    """Returns the goals of runs that are to reach one iteration."""
    return lambda: {run: until for run in runs if reached(ledger, run) < until}


def ended_early(ledger: Ledger, run: str, until: int) -> str:
    """Returns what became of a run that ended too early, for an error."""
    row = ledger.runs.find(run)
    reason = f" ({row.state_reason})" if row.state_reason else ""
    if row.iteration < 0:
        return f"run {run} is {row.state} and has not begun{reason}"
    lacking = ", without its checkpoint" if row.iteration >= until else ""
    return f"run {run} is {row.state} at iteration {row.iteration} of {until}{lacking}{reason}"
