"""Triggers of deployed pipelines: what each has seen, and which run of the pipeline that began.

Consumes what a check of the conditions finds, from any number of processes. Produces rows that are written once: the same
trigger with the same content begins one run, which is created in the transaction that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from db.core.engine import Database
from db.core.errors import PipelineNotFound
from db.core.pipeline_models import DeploymentRow as DeploymentRow
from db.core.pipeline_models import TriggerRow as TriggerRow
from db.write.pipelines import RUNNING, WAITING, NewPipeline, PipelineRow, creating, insert_pipeline, newest_of


@dataclass(frozen=True, slots=True)
class TriggerObservation:
    """What a trigger sees now. Fields as in `TriggerRow`."""

    trigger: str
    content: str
    why: str
    signature: str = ""


class PipelineTriggers:
    """Writes and reads deployed pipelines and what their triggers have seen."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def deploy(self, name: str, file: str, by: str) -> DeploymentRow:
        """Records that a pipeline is deployed, or from which file and by whom it is now."""
        with self._database.write() as connection:
            row = DeploymentRow(name, file, by, self._database.time(connection))
            values = {"file": file, "by": by, "at": row.at}
            known = update(DeploymentRow).where(DeploymentRow.name == name).values(**values)
            if not connection.execute(known).rowcount:
                connection.execute(insert(DeploymentRow), values | {"name": name})
            return row

    def deployment(self, name: str) -> DeploymentRow:
        """Returns a deployed pipeline. Raises `PipelineNotFound`."""
        with self._database.read() as connection:
            query = select(DeploymentRow.__table__).where(DeploymentRow.name == name)
            row = connection.execute(query).one_or_none()
        if row is None:
            raise PipelineNotFound(
                f"pipeline {name!r} is not deployed in this ledger; use the ledger with which it was deployed, or deploy it "
                f"with `yatt pipeline deploy FILE`"
            )
        return DeploymentRow(**row._mapping)

    def deployments(self) -> list[DeploymentRow]:
        """Returns the deployed pipelines, by name."""
        query = select(DeploymentRow.__table__).order_by(DeploymentRow.name)
        with self._database.read() as connection:
            return [DeploymentRow(**row._mapping) for row in connection.execute(query)]

    def see(self, name: str, seen: TriggerObservation) -> bool:
        """Records what a trigger sees; returns True if it is new and begins a run of the pipeline.

        The first thing that a trigger sees begins none.
        """
        with self._database.write() as connection:
            self._lock(connection, name)
            same = (TriggerRow.name == name, TriggerRow.trigger == seen.trigger)
            rows = connection.execute(select(TriggerRow.__table__).where(*same)).all()
            if any(row.content == seen.content for row in rows):
                known = update(TriggerRow).where(*same, TriggerRow.content == seen.content)
                connection.execute(known.values(signature=seen.signature))
                return False
            number = 1 + max((row.number for row in rows), default=0)
            values = {
                **{"name": name, "trigger": seen.trigger, "number": number, "content": seen.content},
                **{"signature": seen.signature, "why": seen.why, "at": self._database.time(connection)},
            }
            connection.execute(insert(TriggerRow), values)
            return number > 1

    def seen(self, name: str) -> list[TriggerRow]:
        """Returns all that the triggers of a pipeline have seen, oldest first for each."""
        return self._rows(TriggerRow.name == name)

    def remembered(self, name: str) -> list[TriggerRow]:
        """Returns what is new and has not begun a run of the pipeline yet."""
        return self._rows(TriggerRow.name == name, *_NEW)

    def of(self, pipeline: str) -> list[TriggerRow]:
        """Returns what began a run of a pipeline; empty if people did."""
        return self._rows(TriggerRow.pipeline == pipeline)

    def begin(self, new: NewPipeline) -> PipelineRow | None:
        """Creates a run for all that is remembered; None if nothing is, or while the last run goes on or waits for people."""
        return creating(lambda: self._begin(new))

    def _begin(self, new: NewPipeline) -> PipelineRow | None:
        with self._database.write() as connection:
            self._lock(connection, new.name)
            remembered = (TriggerRow.name == new.name, *_NEW)
            if connection.execute(select(TriggerRow.number).where(*remembered)).first() is None:
                return None
            last = newest_of(connection, new.name)
            if last is not None and last.state in (RUNNING, WAITING):
                return None
            begun = insert_pipeline(connection, new, last, self._database.time(connection))
            connection.execute(update(TriggerRow).where(*remembered).values(pipeline=begun.id))
            return begun

    def _rows(self, *conditions: Any) -> list[TriggerRow]:
        query = select(TriggerRow.__table__).where(*conditions)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(TriggerRow.trigger, TriggerRow.number))
            return [TriggerRow(**row._mapping) for row in rows]

    def _lock(self, connection: Connection, name: str) -> None:
        """Lets one process at a time decide about a deployed pipeline."""
        query = select(DeploymentRow.name).where(DeploymentRow.name == name).with_for_update()
        connection.execute(query).one()


_NEW = (TriggerRow.number > 1, TriggerRow.pipeline.is_(None))
