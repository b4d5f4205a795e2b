"""What people do to the queue: submit runs, change their priority, hold them back, remove them, and report lost devices.

No fence is needed; every change of a run is a link of its audit chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from db.core.engine import Database
from db.core.errors import QueueRefused
from db.core.lease_rows import lock_lease
from db.core.queue_models import QueueOutage
from db.core.queue_rows import EntryRow
from db.core.subjects import QUEUE, subject_of
from db.write.events import append, lock_run

SUBMITTED = "queue_submitted"
CHANGED = "queue_changed"
WAITING = "waiting"
RUNNING = "running"
ENDED = "ended"
RUN = "run"
HOLD = "hold"
REMOVE = "remove"
SPEC = "spec"
AUTO = "auto"
"""Whose interval of checkpoints a run uses: its spec's, or the scheduler's."""
REMOVED = "removed"
PARKED = 2**52
"""Stands for the time of the next start of a run whose driver waits without devices."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a run asks of the queue.

    pools: names, the preferred one first.
    until: the iteration after which its drivers stop; None: the run's target.
    """

    pools: tuple[str, ...]
    owner: str
    project: str
    priority: int
    devices: int
    checkpoints: str = SPEC
    until: int | None = None


class Submissions:
    """Changes what people want of the queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, run: str, submission: Submission, by: str) -> None:
        """Puts a run into the queue, or back into it.

        Raises `RunNotFound`, and `QueueRefused` if it is in the queue already.
        """
        with self._database.write() as connection:
            lock_lease(connection, self._database, subject_of(QUEUE))  # so that no two runs get the same position
            head = lock_run(connection, self._database, run)
            known = connection.execute(select(EntryRow.ended_at).where(EntryRow.run == run)).one_or_none()
            if known is not None and known.ended_at is None:
                raise QueueRefused(f"run {run} is in the queue already")
            link = append(connection, head, SUBMITTED, {"by": by, **asdict(submission)})
            seq = connection.execute(select(func.coalesce(func.max(EntryRow.seq), 0))).scalar_one() + 1
            values = _fresh(submission, int(seq), link.at)
            if known is None:
                connection.execute(insert(EntryRow), {"run": run, **values})
            else:
                connection.execute(update(EntryRow).where(EntryRow.run == run).values(**values))

    def change(self, run: str, by: str, *, wanted: str | None = None, priority: int | None = None) -> None:
        """Changes what people want of a run, or its priority. The scheduler acts on it in its next round.

        Raises `QueueRefused` if the run is not in the queue, or is to be removed.
        """
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            row = _open_entry(connection, run)
            if row.wanted == REMOVE:
                raise QueueRefused(f"run {run} is being removed from the queue")
            values: dict[str, Any] = {}
            if priority is not None and priority != row.priority:
                values["priority"] = priority
            if wanted is not None and wanted != row.wanted:
                values |= _waiting_as(row, wanted, int(head.now))
                values["wanted"] = wanted
            if values:
                body = {key: value for key, value in values.items() if key in ("priority", "wanted")}
                append(connection, head, CHANGED, {**body, "by": by})
                connection.execute(update(EntryRow).where(EntryRow.run == run).values(**values))

    def report_outage(self, pool: str, devices: Sequence[int], within_seconds: float, by: str) -> None:
        """Records that devices are gone, or will be within a time. Known outages keep their time if it is earlier."""
        with self._database.write() as connection:
            now = self._database.time(connection)
            lost_at = now + round(within_seconds * 1000)
            for device in devices:
                own = (QueueOutage.pool == pool, QueueOutage.device == device, QueueOutage.ended_at.is_(None))
                known = connection.execute(select(QueueOutage.lost_at).where(*own)).scalar_one_or_none()
                if known is None:
                    row = {"pool": pool, "device": device, "announced_at": now, "lost_at": lost_at, "by": by}
                    connection.execute(insert(QueueOutage), row)
                elif lost_at < known:
                    connection.execute(update(QueueOutage).where(*own).values(lost_at=lost_at))

    def end_outage(self, pool: str, devices: Sequence[int]) -> None:
        """Records that devices are back."""
        ended = update(QueueOutage).where(QueueOutage.pool == pool, QueueOutage.device.in_(devices))
        with self._database.write() as connection:
            connection.execute(ended.where(QueueOutage.ended_at.is_(None)).values(ended_at=self._database.now()))


def _fresh(submission: Submission, seq: int, now: int) -> Mapping[str, Any]:
    return {
        **asdict(submission),
        "pools": ",".join(submission.pools),
        "seq": seq,
        "wanted": RUN,
        "state": WAITING,
        "reason": "",
        "submitted_at": now,
        "waited_ms": 0,
        "waiting_since": now,
        "not_before": None,
        "failures": 0,
        "ended_at": None,
        "outcome": None,
    }


def _open_entry(connection: Connection, run: str) -> Any:
    row = connection.execute(
        select(*EntryRow.__table__.columns).where(EntryRow.run == run).with_for_update()
    ).one_or_none()
    if row is None or row.ended_at is not None:
        raise QueueRefused(f"run {run} is not in the queue; `yatt queue` lists those that are")
    return row


def _waiting_as(row: Any, wanted: str, now: int) -> Mapping[str, Any]:
    """Returns the columns that count the waiting time; a run that is held back does not age."""
    if row.state != WAITING:
        return {}
    if wanted == RUN:
        return {
            "waiting_since": now,
            "not_before": PARKED if row.not_before == PARKED else None,
            "failures": 0,
        }
    if row.waiting_since is None:
        return {}
    return {"waiting_since": None, "waited_ms": row.waited_ms + now - row.waiting_since}
