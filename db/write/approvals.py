"""Approvals: questions to people, who may decide them, and what was decided by whom and why.

Consumes questions of drivers, commands and pipelines, and people's decisions. Produces rows of the table `approval`, whose
decision is written once, and links of the run's audit chain: one for each question and one for each decision. A question that
has the subject and key of an earlier one is that question, so that whoever asks may be killed and ask again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from db.core.approval_rules import (
    APPROVED,
    DECISIONS,
    REJECTED,
    WITHDRAWN,
    Approval,
    Deciders,
    is_overdue,
    may_decide,
    standing,
)
from db.core.engine import Database, Fence
from db.core.errors import ApprovalForbidden, ApprovalNotFound, ApprovalRefused
from db.core.models import Event
from db.core.people_models import ApprovalTable as Table
from db.write.events import append, lock_run
from db.write.outbox import OutboxEntry, enqueue

ASKED = "approval_asked"
DECIDED = "approval_decided"
"""Kinds of the events that record a question and its decision."""
BY_DEADLINE = "deadline"
DRIVER = "driver"
"""What decides without a person: an approval's deadline, and the driver that withdraws a question."""
LINK = "link"
"""Through a signed link, which is itself the right to decide, whomever the question names."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What is to be asked; the fields are those of `Approval`, where `text` becomes `question`.

    seconds: time until the default decides; None for no deadline.
    """

    subject: str
    key: str
    kind: str
    text: str
    run: str | None = None
    deciders: Deciders = field(default_factory=Deciders)
    seconds: float | None = None
    default_decision: str = REJECTED
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """A decision by a person.

    by: who decides.
    roles: the person's roles.
    via: cli, dashboard, api or link.
    """

    decision: str
    by: str
    why: str
    via: str
    roles: tuple[str, ...] = ()


class Approvals:
    """Asks, decides and reads approvals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ask(
        self, question: ApprovalRequest, fence: Fence | None = None, entries: Sequence[OutboxEntry] = ()
    ) -> Approval:
        """Asks a question, or returns the one that was asked before under its subject and key.

        fence: a driver's fence for the question's run (`Fenced`); None for others.
        entries: outbox rows of the run that are written with a new question.

        Raises `RunNotFound`; `ApprovalRefused` for a default that is no decision.
        """
        if question.default_decision not in DECISIONS:
            raise ApprovalRefused(f"default {question.default_decision!r}: expected one of {', '.join(DECISIONS)}")
        try:
            with self._transaction(fence) as connection:
                return self._ask(connection, question, entries)
        except IntegrityError:  # somebody asked it at the same moment, for a subject without a run that serialises them
            known = self.asked(question.subject, question.key)
            if known is None:
                raise
            return known

    def decide(self, number: int, verdict: ApprovalDecision) -> Approval:
        """Decides an open approval.

        Raises `ApprovalNotFound`; `ApprovalForbidden` if the person may not decide it; `ApprovalRefused` if it is decided
        already, its deadline has passed, or there is no reason.
        """
        if verdict.decision not in DECISIONS:
            raise ApprovalRefused(f"decision {verdict.decision!r}: expected one of {', '.join(DECISIONS)}")
        if not verdict.why.strip():
            raise ApprovalRefused(f"approval {number}: a decision needs a reason")
        with self._open_approval(number) as (connection, approval, now):
            decided = standing(approval, now)
            if approval.decision is not None or is_overdue(approval, now):
                who = f"by {approval.decided_by}" if approval.decided_by else "by its deadline"
                raise ApprovalRefused(f"approval {number} was {decided} {who}; a decision is final")
            if verdict.via != LINK and not may_decide(approval.deciders, verdict.by, verdict.roles):
                raise ApprovalForbidden(
                    f"approval {number}: {verdict.by} may not decide it; expected {approval.deciders}"
                )
            said = {
                "decision": verdict.decision,
                "decided_by": verdict.by,
                "via": verdict.via,
                "reason": verdict.why.strip(),
            }
            return self._write(connection, approval, said)

    def take_default(self, number: int) -> Approval:
        """Records an approval's default if its deadline has passed; returns the approval. Raises `ApprovalNotFound`."""
        with self._open_approval(number) as (connection, approval, now):
            if not is_overdue(approval, now):
                return approval
            said = {
                "decision": approval.default_decision,
                "decided_by": BY_DEADLINE,
                "via": BY_DEADLINE,
                "reason": "nobody decided before the deadline",
            }
            return self._write(connection, approval, said)

    def take_defaults(self, subject: str | None = None) -> list[Approval]:
        """Records the defaults of all approvals, or those of a subject, whose deadlines have passed; returns these."""
        due = _approvals(Table.decision.is_(None), Table.deadline <= self._database.now())
        with self._database.read() as connection:
            rows = _read(connection, due if subject is None else due.where(Table.subject == subject))
        return [self.take_default(row.id) for row in rows]

    def withdraw(self, number: int, why: str) -> Approval:
        """Closes an open approval that no longer matters; returns it unchanged if it is decided."""
        with self._open_approval(number) as (connection, approval, _):
            if approval.decision is not None:
                return approval
            said = {"decision": WITHDRAWN, "decided_by": DRIVER, "via": DRIVER, "reason": why}
            return self._write(connection, approval, said)

    def find(self, number: int) -> Approval:
        """Returns an approval. Raises `ApprovalNotFound`."""
        with self._database.read() as connection:
            found = _read(connection, _approvals(Table.id == number))
        if not found:
            raise ApprovalNotFound(f"there is no approval {number} in this ledger; see `yatt approvals`")
        return found[0]

    def asked(self, subject: str, key: str) -> Approval | None:
        """Returns the question that was asked under a subject and key; None if none was."""
        with self._database.read() as connection:
            found = _read(connection, _approvals(Table.subject == subject, Table.key == key))
        return found[0] if found else None

    def of(self, subject: str) -> list[Approval]:
        """Returns all approvals of a subject, oldest first."""
        with self._database.read() as connection:
            return _read(connection, _approvals(Table.subject == subject))

    def runs_to_settle(self, kind: str, done: str) -> list[str]:
        """Returns the runs with approved approvals of a kind that no event of kind `done` names."""
        approved = select(Table.run).where(Table.run.is_not(None), Table.kind == kind, Table.decision == APPROVED)
        query = approved.where(~_naming(aliased(Event), done).exists()).distinct().order_by(Table.run)
        with self._database.read() as connection:
            return [str(run) for run in connection.execute(query).scalars()]

    def decided_between(self, begun: str, ended: str) -> list[Approval]:
        """Returns the decided approvals, oldest first, that an event of kind `begun` names, and no later one of kind `ended`."""
        first = aliased(Event)
        later = aliased(Event)
        still = ~_naming(later, ended).where(later.seq > first.seq).correlate(Table, first).exists()
        query = _approvals(
            Table.run.is_not(None), Table.decision.is_not(None), _naming(first, begun).where(still).exists()
        )
        with self._database.read() as connection:
            return _read(connection, query)

    def list(self, limit: int = 100, only_open: bool = False) -> list[Approval]:
        """Returns the newest approvals, newest first.

        only_open: leave out those that are decided, though not those whose default is still to be recorded.
        """
        query = select(*Table.__table__.columns).order_by(Table.id.desc()).limit(limit)
        with self._database.read() as connection:
            return _read(connection, query.where(Table.decision.is_(None)) if only_open else query)

    def now(self) -> int:
        """Returns the time by the database's clock, for `standing`."""
        with self._database.read() as connection:
            return self._database.time(connection)

    @contextmanager
    def _transaction(self, fence: Fence | None) -> Iterator[Connection]:
        if fence is None:
            with self._database.write() as connection:
                yield connection
        else:
            with self._database.fenced(fence) as (connection, _):
                yield connection

    def _ask(self, connection: Connection, question: ApprovalRequest, entries: Sequence[OutboxEntry]) -> Approval:
        head = None if question.run is None else lock_run(connection, self._database, question.run)
        known = _read(connection, _approvals(Table.subject == question.subject, Table.key == question.key))
        if known:
            return known[0]
        now = int(head.now) if head else self._database.time(connection)
        values = {
            "subject": question.subject,
            "key": question.key,
            "run": question.run,
            "kind": question.kind,
            "question": question.text,
            "evidence": dict(question.evidence),
            "deciders": {"names": list(question.deciders.names), "roles": list(question.deciders.roles)},
            "asked_at": now,
            "deadline": None if question.seconds is None else now + round(question.seconds * 1000),
            "default_decision": question.default_decision,
        }
        number = connection.execute(insert(Table).returning(Table.id), values).scalar_one()
        if head is not None:
            body = {name: value for name, value in values.items() if name not in ("run", "asked_at")}
            append(connection, head, ASKED, {"approval": number, **body})
            enqueue(connection, head.id, entries)
        return _read(connection, _approvals(Table.id == number))[0]

    @contextmanager
    def _open_approval(self, number: int) -> Iterator[tuple[Connection, Approval, int]]:
        """Yields an approval, locked until the end of the transaction, and the time."""
        with self._database.write() as connection:
            query = select(*Table.__table__.columns, self._database.now().label("now"))
            row = connection.execute(query.where(Table.id == number).with_for_update()).one_or_none()
            if row is None:
                raise ApprovalNotFound(f"there is no approval {number} in this ledger; see `yatt approvals`")
            yield connection, _approval(row), int(row.now)

    def _write(self, connection: Connection, approval: Approval, said: Mapping[str, Any]) -> Approval:
        if approval.run is None:
            now: Any = self._database.now()
        else:
            body = {"approval": approval.id, "subject": approval.subject, "key": approval.key, **said}
            now = append(connection, lock_run(connection, self._database, approval.run), DECIDED, body).at
        values = {**said, "decided_at": now}
        connection.execute(update(Table).where(Table.id == approval.id).values(**values))
        return _read(connection, _approvals(Table.id == approval.id))[0]


def _naming(event: Any, kind: str) -> Select[Any]:
    """Returns the query for events of a kind that name the approval of the query around it."""
    about = event.body["approval"].as_integer() == Table.id
    return select(event.seq).where(event.run == Table.run, event.kind == kind, about).correlate(Table)


def _approvals(*conditions: Any) -> Select[Any]:
    return select(*Table.__table__.columns).where(*conditions).order_by(Table.id)


def _read(connection: Connection, query: Select[Any]) -> list[Approval]:
    return [_approval(row) for row in connection.execute(query)]


def _approval(row: Any) -> Approval:
    values = {name: value for name, value in row._mapping.items() if name in Approval.__slots__}
    deciders = Deciders(tuple(row.deciders["names"]), tuple(row.deciders["roles"]))
    return Approval(**{**values, "deciders": deciders})
