"""Lines of iterations and the points that branches stand on: what may still be gone back to, and so what must stay.

Consumes branch rows. Produces the ranges of a line, and the base points of a run: iterations behind
which a rollback or a fork began.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from db.core.ancestry import IterationRange, ancestry
from db.core.engine import Database
from db.core.models import Branch


@dataclass(frozen=True, slots=True)
class BasePoint:
    """A branch of a run begins behind this iteration; line: the ranges that lead to it, the last ends there."""

    branch: int
    iteration: int
    line: tuple[IterationRange, ...]


class Lines:
    """Reads lines and base points."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self, run: str) -> tuple[IterationRange, ...]:
        """The ranges of the current branch's line, oldest first; the last is open. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return tuple(ancestry(connection, run))

    def base_points(self, run: str) -> list[BasePoint]:
        """Where branches of this run begin, in order, each once.

        Those of its forks are not among them: a fork has copies of what it stands on.
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
                    continue  # the run's first branch begins with nothing
                ranges = [part for part in ancestry(connection, parent, branch) if part.first <= iteration]
                ends = [IterationRange(s.run, s.branch, s.first, min(s.last, iteration)) for s in ranges]
                points.append(BasePoint(branch, iteration, tuple(ends)))
        return points
