"""Aliases: which checkpoint of a run is the candidate, which is the champion, and which to roll back to.

Consumes the name of an alias and a kept checkpoint. Produces moves, which are rows that are never changed or
deleted: an alias points to the target of its newest move. Each promotion also adds a link to the audit chain
that records who promoted what, and why. Promotions of a run are serialised by a lock on the run's row.

    candidate   moves without affecting other aliases
    champion    moves, and the alias `rollback` then points to the previous champion
    rollback    moves without affecting other aliases, but only if there is a champion, and never to the champion
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, func, insert, select

from db.core.engine import Database
from db.core.errors import AliasRefused
from db.core.models import AliasMoveTable as Table
from db.core.models import CheckpointRow, Event
from db.write.events import append, lock_run
from db.write.outbox import OutboxEntry, enqueue

ALIASES = CANDIDATE, CHAMPION, ROLLBACK = ("candidate", "champion", "rollback")
PROMOTION = "promotion"
"""The kind of a promotion's link in the audit chain."""
CARRIED_OUT = "promotion_carried_out"
"""The kind of the link that says what became of an approved promotion."""


class CheckpointKey(NamedTuple):
    """The key that identifies a checkpoint within its run."""

    branch: int
    iteration: int
    term: int


@dataclass(frozen=True, slots=True)
class AliasMove:
    """A move of an alias to a checkpoint.

    number: number of the move in the run, counted from 1.
    seq: number of the link of the audit chain that records the move.
    by: who promoted the checkpoint.
    at: milliseconds since 1970.
    folder to state: columns of the checkpoint's row.
    """

    run: str
    number: int
    alias: str
    branch: int
    iteration: int
    term: int
    by: str
    why: str
    at: int
    seq: int
    folder: str
    manifest_sha256: str
    weights_digest: str
    state: str

    @property
    def key(self) -> CheckpointKey:
        """The checkpoint that the alias points to."""
        return CheckpointKey(self.branch, self.iteration, self.term)


Tell = Callable[[Sequence[AliasMove]], Sequence[OutboxEntry]]
"""Returns the outbox rows for a promotion's moves."""


def moves_of(alias: str, target: CheckpointKey, current: Mapping[str, CheckpointKey]) -> dict[str, CheckpointKey]:
    """Returns the moves, in order, that make an alias point to a checkpoint; empty if it already does.

    current: the checkpoints to which the aliases point now.

    Raises `AliasRefused` for an unknown alias, and for a rollback alias that would point to the champion or
    while there is no champion.
    """
    if alias not in ALIASES:
        raise AliasRefused(f"alias {alias!r}: expected one of {', '.join(ALIASES)}")
    champion = current.get(CHAMPION)
    if current.get(alias) == target:
        return {}
    if alias == ROLLBACK and champion is None:
        raise AliasRefused(f"there is no {CHAMPION} yet, so there is nothing for {ROLLBACK} to replace")
    if alias == ROLLBACK and target == champion:
        raise AliasRefused(f"iteration {target.iteration} is the champion; {ROLLBACK} must point to another checkpoint")
    if alias == CHAMPION and champion is not None:
        return {ROLLBACK: champion, CHAMPION: target}
    return {alias: target}


class Aliases:
    """Promotes checkpoints and reads the aliases' current and past targets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def promote(
        self, run: str, alias: str, target: CheckpointKey, by: str, why: str, tell: Tell = lambda moves: ()
    ) -> list[AliasMove]:
        """Points an alias to a kept checkpoint of the run; returns the moves, which are empty if it already did.

        tell: given the moves, returns the tracker's outbox rows.

        Raises `RunNotFound`; `AliasRefused` for a checkpoint that is not kept, and in the cases of `moves_of`.
        """
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            return _promote(connection=connection, head=head, alias=alias, target=target, by=by, why=why, tell=tell)

    def carry_out(
        self, run: str, approval: int, target: CheckpointKey, by: str, why: str, tell: Tell = lambda moves: ()
    ) -> list[AliasMove]:
        """Makes a checkpoint champion as an approval says, once, and records what became of it; returns the moves.

        There are none if the checkpoint is the champion already or is not kept, and if the approval was carried out before.

        Raises `RunNotFound`.
        """
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            if connection.execute(_carried_out(run).where(approval == _APPROVAL)).first() is not None:
                return []
            moves = list[AliasMove]()
            obstacle = ""
            try:
                moves = _promote(
                    connection=connection, head=head, alias=CHAMPION, target=target, by=by, why=why, tell=tell
                )
            except AliasRefused as error:
                obstacle = str(error)
            body = {"approval": approval, "moves": [move.number for move in moves], "obstacle": obstacle}
            append(connection, lock_run(connection, self._database, run), CARRIED_OUT, body)
            return moves

    def carried_out(self, run: str) -> set[int]:
        """Returns the numbers of the approvals of the run that were carried out."""
        with self._database.read() as connection:
            return set(connection.execute(_carried_out(run)).scalars())

    def current(self, run: str) -> dict[str, AliasMove]:
        """Returns the newest move of each alias, in the order of `ALIASES`."""
        newest = {move.alias: move for move in self.history(run)}
        return {alias: newest[alias] for alias in ALIASES if alias in newest}

    def history(self, run: str) -> list[AliasMove]:
        """Returns every move of the run's aliases, in order."""
        with self._database.read() as connection:
            return _moves(connection, run)

    def pointing(self, run: str) -> dict[str, CheckpointKey]:
        """Returns the checkpoints that the run's aliases point to."""
        with self._database.read() as connection:
            return pointing(connection, run)


def pointing(connection: Connection, run: str) -> dict[str, CheckpointKey]:
    """Returns the checkpoints that a run's aliases point to, read in an open transaction."""
    newest = select(func.max(Table.number)).where(Table.run == run).group_by(Table.alias)
    columns = (Table.alias, Table.branch, Table.iteration, Table.term)
    rows = connection.execute(select(*columns).where(Table.run == run, Table.number.in_(newest)))
    return {alias: CheckpointKey(branch, iteration, term) for alias, branch, iteration, term in rows}


_APPROVAL = Event.body["approval"].as_integer()


def _carried_out(run: str) -> Select[int]:
    return select(_APPROVAL).where(Event.run == run, Event.kind == CARRIED_OUT)


def _promote(
    connection: Connection, head: Any, alias: str, target: CheckpointKey, by: str, why: str, tell: Tell
) -> list[AliasMove]:
    """Points an alias to a checkpoint in an open transaction that has locked the run; returns the moves."""
    run = str(head.id)
    moves = moves_of(alias, target, pointing(connection, run))
    if not moves:
        return []
    _require_kept(connection, run, target)
    first = 1 + _last_number(connection, run)
    planned = [
        {"number": number, "alias": name, **key._asdict()} for number, (name, key) in enumerate(moves.items(), first)
    ]
    body = {"alias": alias, **target._asdict(), "by": by, "why": why, "moves": planned}
    link = append(connection, head, PROMOTION, body)
    shared = {"run": run, "by": by, "why": why, "at": link.at, "seq": link.seq}
    connection.execute(insert(Table), [move | shared for move in planned])
    made = [move for move in _moves(connection, run) if move.number >= first]
    enqueue(connection, run, tell(made))
    return made


def _require_kept(connection: Connection, run: str, target: CheckpointKey) -> None:
    key = (
        CheckpointRow.branch == target.branch,
        CheckpointRow.iteration == target.iteration,
        CheckpointRow.term == target.term,
    )
    state = connection.execute(select(CheckpointRow.state).where(CheckpointRow.run == run, *key)).scalar_one_or_none()
    if state != "kept":
        why = "it was never recorded" if state is None else f"its files are {state}"
        raise AliasRefused(f"run {run}: the checkpoint of iteration {target.iteration} cannot be promoted: {why}")


def _last_number(connection: Connection, run: str) -> int:
    return connection.execute(select(func.max(Table.number)).where(Table.run == run)).scalar_one() or 0


def _moves(connection: Connection, run: str) -> list[AliasMove]:
    own = [column for column in Table.__table__.columns if column.name in AliasMove.__slots__]
    of_checkpoint = (
        CheckpointRow.folder,
        CheckpointRow.manifest_sha256,
        CheckpointRow.weights_digest,
        CheckpointRow.state,
    )
    same = [getattr(Table, name) == getattr(CheckpointRow, name) for name in ("run", *CheckpointKey._fields)]
    query = select(*own, *of_checkpoint).join(CheckpointRow, and_(*same)).where(Table.run == run).order_by(Table.number)
    return [AliasMove(**row._mapping) for row in connection.execute(query)]
