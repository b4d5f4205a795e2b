"""The line of iterations that leads to a branch, across rollbacks and forks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from db.core.errors import RunNotFound
from db.core.made_once import given, matching
from db.core.models import Branch, RunTable

OPEN_END = 2**62
# Made once: a line is looked up in every iteration.
_CURRENT = select(RunTable.current_branch).where(*matching(RunTable, "id"))
_PARENT = select(Branch.parent_run, Branch.parent_branch, Branch.parent_iteration).where(
    *matching(Branch, "run", "number")
)


@dataclass(frozen=True, slots=True)
class IterationRange:
    """The iterations first..last (both included) that a line takes from one branch."""

    run: str
    branch: int
    first: int
    last: int


def ancestry(connection: Connection, run: str, branch: int | None = None) -> list[IterationRange]:
    """Returns the ranges of a branch's line, oldest first; by default the current branch's. Raises `RunNotFound`."""
    if branch is None:
        branch = connection.execute(_CURRENT, given(id=run)).scalar_one_or_none()
    ranges: list[IterationRange] = []
    last = OPEN_END
    while branch is not None:
        row = connection.execute(_PARENT, given(run=run, number=branch)).one_or_none()
        if row is None:
            raise RunNotFound(f"there is no branch {branch} of run {run!r} in this ledger")
        first = 0 if row.parent_iteration is None else row.parent_iteration + 1
        ranges.append(IterationRange(run, branch, first, last))
        run = row.parent_run or run
        branch = row.parent_branch
        last = first - 1
    if not ranges:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return ranges[::-1]


def range_of(ranges: Sequence[IterationRange], iteration: int) -> IterationRange | None:
    """Returns the range that contains an iteration; None if there is none."""
    return next((span for span in ranges if span.first <= iteration <= span.last), None)


def own_places(ranges: Sequence[IterationRange], run: str) -> list[IterationRange]:
    """Returns the ranges in which a run's own rows and files for a line's iterations are stored.

    A fork has its own copies of what it inherited, stored under the branch numbers of the runs that produced them.
    The checkpoint from which a branch starts may be stored under that branch, although its iteration belongs to the
    branch before.
    """
    return [
        replace(span, first=max(0, span.first - 1)) if span.run == run else replace(span, run=run) for span in ranges
    ]
