"""The run list: many runs in brief, in pages, with figures that show how they are doing. Reads only.

Each page takes a fixed number of queries, however many runs there are and however long they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, case, func, select

from db.core.engine import Database
from db.core.models import AttemptRow, CheckpointRow, Event, MetricPoint, MetricSeries, Outbox, RunTable, RunTag
from db.read.overview import NEWEST_FIRST, RunLine, line_of, select_lines
from db.write.alarms import ALARM
from db.write.outbox import REFUSED
from db.write.runs import DRIVEN_STATES

REWARD = "reward/mean"
ACCURACY = "evaluation/accuracy"
ITERATION_SECONDS = "seconds/iteration"
NEWEST = MetricPoint.step == RunTable.iteration
RECENT = MetricPoint.step.between(RunTable.iteration - 15, RunTable.iteration)
"""The points of the newest commit, and those that a run's pace is computed from."""


@dataclass(frozen=True, slots=True)
class RunListLine:
    """A run in the list.

    event_seq: number of its audit chain's last link.
    reward: mean reward at the newest commit.
    accuracy: held-out accuracy at the newest evaluation on the current branch.
    iteration_seconds: mean seconds per iteration over the newest iterations.
    """

    line: RunLine
    event_seq: int
    reward: float | None
    accuracy: float | None
    iteration_seconds: float | None


@dataclass(frozen=True, slots=True)
class RunListPage:
    """A page of the matching runs.

    total: number of matching runs on all pages.
    states: number of runs by state, over the whole ledger.
    """

    total: int
    states: Mapping[str, int]
    lines: tuple[RunListLine, ...]


class RunListReader:
    """Reads many runs at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, text: str = "", state: str | None = None, limit: int = 50, offset: int = 0, tags: Sequence[str] = ()
    ) -> RunListPage:
        """Returns runs whose id contains the text, in the given state and with all tags: running first, then newest."""
        wanted = []
        if text:
            wanted.append(RunTable.id.icontains(text, autoescape=True))
        if state is not None:
            wanted.append(RunTable.state == state)
        wanted += [RunTable.id.in_(select(RunTag.run).where(RunTag.tag == tag)) for tag in tags]
        with self._database.read() as connection:
            states = {row.state: row.runs for row in connection.execute(_states())}
            total = connection.execute(select(func.count()).select_from(RunTable).where(*wanted)).scalar_one()
            lines = _lines(connection=connection, now=self._database.now(), wanted=wanted, limit=limit, offset=offset)
            return RunListPage(total, states, lines)

    def line(self, run: str) -> RunListLine | None:
        """Returns one run; None if it is unknown."""
        with self._database.read() as connection:
            lines = _lines(
                connection=connection, now=self._database.now(), wanted=[RunTable.id == run], limit=1, offset=0
            )
        return lines[0] if lines else None

    def attempts(self, runs: Sequence[str]) -> dict[str, dict[tuple[str, str], int]]:
        """Returns the number of failed attempts by run, then by phase and failure class."""
        query = (
            select(AttemptRow.run, AttemptRow.phase, AttemptRow.failure_class, func.count())
            .where(AttemptRow.run.in_(runs), AttemptRow.failure_class.is_not(None))
            .group_by(AttemptRow.run, AttemptRow.phase, AttemptRow.failure_class)
        )
        found: dict[str, dict[tuple[str, str], int]] = {}
        with self._database.read() as connection:
            for run, phase, kind, count in connection.execute(query):
                found.setdefault(run, {})[phase, str(kind)] = count
        return found

    def alarms(self, runs: Sequence[str]) -> dict[tuple[str, ...], int]:
        """Returns the number of alarms by run, rule and requested action."""
        rule, action = (Event.body[name].as_string().label(name) for name in ("rule", "action"))
        query = (
            select(Event.run, rule, action, func.count())
            .where(Event.run.in_(runs), Event.kind == ALARM)
            .group_by(Event.run, rule.name, action.name)
        )
        with self._database.read() as connection:
            return {(row[0], row[1], row[2]): row[3] for row in connection.execute(query)}

    def newest(self, runs: Sequence[str], keys: Sequence[str]) -> dict[tuple[str, ...], float]:
        """Returns values of some metrics at each run's newest commit, by run and key; missing ones are left out."""
        with self._database.read() as connection:
            return _means(connection, runs, keys, NEWEST)

    def curves(self, runs: Sequence[str], key: str, buckets: int) -> dict[str, tuple[float | None, ...]]:
        """Returns a metric of each run's current branch as the means of so many equal parts, up to the newest commit.

        A part without points is None; runs without any point are left out.
        """
        number = (MetricPoint.step * buckets // (RunTable.iteration + 1)).label("number")
        query = (
            select(RunTable.id, number, func.avg(MetricPoint.value).label("mean"))
            .join(MetricSeries, MetricSeries.run == RunTable.id)
            .join(MetricPoint, MetricPoint.series == MetricSeries.id)
            .where(RunTable.id.in_(runs), MetricSeries.key == key)
            .where(MetricPoint.branch == RunTable.current_branch, MetricPoint.step.between(0, RunTable.iteration))
            .group_by(RunTable.id, number)
        )
        found: dict[str, dict[int, float]] = {}
        with self._database.read() as connection:
            for run, part, mean in connection.execute(query):
                found.setdefault(run, {})[part] = float(mean)
        return {run: tuple(parts.get(part) for part in range(buckets)) for run, parts in found.items()}

    def outbox_pending(self, runs: Sequence[str]) -> dict[str, int]:
        """Returns the number of undelivered outbox rows by run; runs without any are left out."""
        query = select(Outbox.run, func.count()).where(Outbox.run.in_(runs), Outbox.delivered_at.is_(None))
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(Outbox.run))}

    def outbox_refused(self, runs: Sequence[str]) -> dict[str, int]:
        """Returns the number of outbox rows that a tracker has refused for good by run; runs without any are left out."""
        query = select(Outbox.run, func.count()).where(Outbox.run.in_(runs), Outbox.external_id.startswith(REFUSED))
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(Outbox.run))}

    def newest_checkpoints(self, runs: Sequence[str]) -> dict[str, int]:
        """Returns when each run's newest checkpoint was recorded, in milliseconds since 1970.

        Runs without a checkpoint are left out.
        """
        query = select(CheckpointRow.run, func.max(CheckpointRow.recorded_at)).where(CheckpointRow.run.in_(runs))
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(CheckpointRow.run))}


def _states() -> Select[str, int]:
    return select(RunTable.state, func.count().label("runs")).group_by(RunTable.state).order_by(RunTable.state)


def _lines(
    connection: Connection, now: ColumnElement[int], wanted: Sequence[ColumnElement[bool]], limit: int, offset: int
) -> tuple[RunListLine, ...]:
    rows = connection.execute(
        select_lines(now, RunTable.event_seq)
        .where(*wanted)
        .order_by(case((RunTable.state.in_(DRIVEN_STATES), 0), else_=1), *NEWEST_FIRST)
        .limit(limit)
        .offset(offset)
    ).all()
    names = [row.id for row in rows]
    rewards = _means(connection, names, [REWARD], NEWEST)
    paces = _means(connection, names, [ITERATION_SECONDS], RECENT)
    accuracies = _last(connection, names, ACCURACY)
    return tuple(
        RunListLine(
            line=line_of(row),
            event_seq=row.event_seq,
            reward=rewards.get((row.id, REWARD)),
            accuracy=accuracies.get(row.id),
            iteration_seconds=paces.get((row.id, ITERATION_SECONDS)),
        )
        for row in rows
    )


def _last(connection: Connection, runs: Sequence[str], key: str) -> dict[str, float]:
    """Returns a metric's last value on each run's current branch; runs without one are left out."""
    last = (
        select(MetricPoint.value)
        .where(MetricPoint.series == MetricSeries.id, MetricPoint.branch == RunTable.current_branch)
        .where(MetricPoint.step <= RunTable.iteration)
        .order_by(MetricPoint.step.desc())
        .limit(1)
        .correlate(RunTable, MetricSeries)
        .scalar_subquery()
    )
    query = select(RunTable.id, last).join(MetricSeries, MetricSeries.run == RunTable.id)
    query = query.where(RunTable.id.in_(runs), MetricSeries.key == key)
    return {run: float(value) for run, value in connection.execute(query) if value is not None}


def _means(
    connection: Connection, runs: Sequence[str], keys: Sequence[str], points: ColumnElement[bool]
) -> dict[tuple[str, ...], float]:
    """Returns means of metrics over some points of each run's current branch, by run and key.

    Metrics without points are left out.
    """
    # A subquery per series: with a join, PostgreSQL misjudges the number of points and reads the whole table.
    mean = (
        select(func.avg(MetricPoint.value))
        .where(MetricPoint.series == MetricSeries.id, MetricPoint.branch == RunTable.current_branch, points)
        .correlate(RunTable, MetricSeries)
        .scalar_subquery()
    )
    query = select(RunTable.id, MetricSeries.key, mean).join(MetricSeries, MetricSeries.run == RunTable.id)
    query = query.where(RunTable.id.in_(runs), MetricSeries.key.in_(keys))
    return {(run, key): float(value) for run, key, value in connection.execute(query) if value is not None}
