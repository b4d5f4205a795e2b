"""Lines of iterations and the base points of branches: what a run may still return to, and so what must be kept.

Consumes branch rows. Produces the ranges of a line, and a run's base points: the iterations after which a
rollback or a fork began.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from db.core.ancestry import IterationRange, ancestry
from db.core.engine import Database
from db.core.models import Branch


@dataclass(frozen=True, slots=True)
class BasePoint:
    """An iteration after which a branch of a run begins.

    line: the ranges that lead to the iteration; the last one ends there.
    """

    branch: int
    iteration: int
    line: tuple[IterationRange, ...]


class IterationLines:
    """Reads lines and base points."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self, run: str) -> tuple[IterationRange, ...]:
        """Returns the ranges of the current branch's line, oldest first; the last one is open-ended.

        Raises `RunNotFound`.
        """
        with self._database.read() as connection:
            return tuple(ancestry(connection, run))

    def base_points(self, run: str) -> list[BasePoint]:
        """Returns the points where this run's branches begin, in order, without duplicates.

        The base points of its forks are not included: a fork has copies of what it depends on.
        """
        query = (
            select(Branch.parent_run, Branch.parent_branch, Branch.parent_iteration)
            .where(Branch.run == run)
            .distinct()
            .order_by(Branch.parent_run, Branch.parent_branch, Branch.parent_iteration)
        )
        points = []
        with self._database.read() as connection:
            for parent, branch, iteration in connection.execute(query).all():
                if parent is None or branch is None or iteration is None:
                    continue  # the run's first branch has no parent
                ranges = [part for part in ancestry(connection, parent, branch) if part.first <= iteration]
                ends = [IterationRange(s.run, s.branch, s.first, min(s.last, iteration)) for s in ranges]
                points.append(BasePoint(branch, iteration, tuple(ends)))
        return points
