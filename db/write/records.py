"""What the driver records about an iteration besides its phases.

These are sealed shards, waves, choices, placement decisions and checkpoints. A choice is recorded before it takes
effect, and a recovering driver obeys it: an attempt to record it again returns the first record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, Update, and_, bindparam, insert, or_, select, update

from db.core.ancestry import ancestry, own_places
from db.core.engine import Database, Fence, canonical_json
from db.core.errors import Conflict, OutOfOrder
from db.core.made_once import ITERATION, given, matching
from db.core.models import CheckpointRow as CheckpointRow
from db.core.models import Choice, PlacementDecision, Shard, Wave
from db.write.aliases import CheckpointKey, pointing
from db.write.events import append, lock_run
from db.write.outbox import OutboxEntry, enqueue


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A sealed shard.

    term: the term that produced it.
    group_digests: 32 bytes per prompt.
    sums: additive statistics.
    """

    branch: int
    iteration: int
    wave: int
    shard: int
    term: int
    folder: str
    manifest_sha256: str
    samples: int
    tokens: int
    group_digests: bytes
    sums: Mapping[str, float]
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class WaveRow:
    """A wave of collect: its plan and its outcome (None while it is open)."""

    branch: int
    iteration: int
    wave: int
    plan: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A choice that depended on time, load or the environment.

    name: what was chosen; unique within an iteration.
    term: the term that made the choice; 0 if the choice is not recorded yet.
    """

    branch: int
    iteration: int
    name: str
    body: Mapping[str, Any]
    term: int = 0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A placement decision, and the actual outcome (None until it is known)."""

    branch: int
    iteration: int
    seq: int
    inputs: Mapping[str, Any]
    decision: Mapping[str, Any]
    prediction: Mapping[str, Any]
    reason: str
    outcome: Mapping[str, Any] | None = None


def _rows_of(table: Any, names: Iterable[str]) -> Select[Any]:
    """Returns the statement that reads columns of an iteration's rows."""
    return select(*(table.__table__.columns[name] for name in names)).where(*matching(table, *ITERATION))


def _setting_outcome(table: Any, number: str) -> Update:
    """Returns the statement that sets the outcome of a row of an iteration, which has none, by its number."""
    of_row = update(table).where(*matching(table, *ITERATION, number), table.outcome.is_(None))
    return of_row.values(outcome=bindparam("found"))


# Statements of every iteration, made once.
_SHARD_KEY = (*ITERATION, "wave", "shard")
_RECORDED_SHARD = select(Shard.manifest_sha256, Shard.folder).where(*matching(Shard, *_SHARD_KEY))
_SHARDS = _rows_of(Shard, ShardRow.__slots__).order_by(Shard.wave, Shard.shard)
_SHARDS_OF_WAVE = _SHARDS.where(*matching(Shard, "wave"))
_WAVES = _rows_of(Wave, WaveRow.__slots__).order_by(Wave.wave)
_WAVE = _WAVES.where(*matching(Wave, "wave"))
_SETTLE_WAVE = _setting_outcome(Wave, "wave")
_CHOICES = _rows_of(Choice, ChoiceRow.__slots__).order_by(Choice.recorded_at, Choice.name)
_CHOICE = _CHOICES.where(*matching(Choice, "name"))
_DECISIONS = _rows_of(PlacementDecision, DecisionRow.__slots__).order_by(PlacementDecision.seq)
_DECISION = _DECISIONS.where(*matching(PlacementDecision, "seq"))
_SET_DECISION_OUTCOME = _setting_outcome(PlacementDecision, "seq")


class Records:
    """Records shards, waves, choices, decisions and checkpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def shard(self, fence: Fence, row: ShardRow) -> bool:
        """Records a sealed shard; returns False if it is already recorded with the same manifest.

        The shard itself is durable, with its manifest; its row is once its wave is settled.

        Raises `Fenced`, `Conflict`.
        """
        with self._database.fenced(fence, synced=False) as (connection, now):
            key = given(run=fence.run, **{name: getattr(row, name) for name in _SHARD_KEY[1:]})
            found = connection.execute(_RECORDED_SHARD, key).one_or_none()
            if found is None:
                connection.execute(insert(Shard), asdict(row) | {"run": fence.run, "recorded_at": now})
                return True
        if found.manifest_sha256 != row.manifest_sha256:
            place = f"run {fence.run}, iteration {row.iteration}, wave {row.wave}, shard {row.shard}"
            raise Conflict(f"{place}: {found.folder} is recorded; {row.folder} has a different manifest")
        return False

    def replace_shard(self, fence: Fence, row: ShardRow) -> None:
        """Points a recorded shard's row to regenerated files, after the original ones were lost.

        Raises `Fenced`; `OutOfOrder` for a shard that is not recorded; `Conflict` if the samples differ, because
        an update that used the original ones could then not be replayed.
        """
        with self._database.fenced(fence) as (connection, now):
            key = (*_iteration(Shard, fence.run, row.branch, row.iteration), Shard.wave == row.wave)
            key = (*key, Shard.shard == row.shard)
            columns = (Shard.group_digests, Shard.manifest_sha256, Shard.folder)
            found = connection.execute(select(*columns).where(*key)).one_or_none()
            place = f"run {fence.run}, iteration {row.iteration}, wave {row.wave}, shard {row.shard}"
            if found is None:
                raise OutOfOrder(f"{place}: the shard is not recorded, so there is nothing to replace")
            if found.group_digests != row.group_digests:
                raise Conflict(f"{place}: the samples in {row.folder} differ from the recorded ones in {found.folder}")
            connection.execute(update(Shard).where(*key).values(**asdict(row), recorded_at=now))
            body = {
                **{name: getattr(row, name) for name in ("branch", "iteration", "wave", "shard", "term")},
                "lost": {"folder": found.folder, "manifest_sha256": found.manifest_sha256},
                "made": {"folder": row.folder, "manifest_sha256": row.manifest_sha256},
            }
            append(connection, lock_run(connection, self._database, fence.run), "shard_regenerated", body)

    def shards(self, run: str, branch: int, iteration: int, wave: int | None = None) -> list[ShardRow]:
        """Returns the recorded shards of an iteration (or of one of its waves) in order of wave and shard."""
        query = _SHARDS if wave is None else _SHARDS_OF_WAVE
        with self._database.read() as connection:
            rows = connection.execute(query, given(run=run, branch=branch, iteration=iteration, wave=wave))
            return [ShardRow(**row._mapping) for row in rows]

    def wave(self, fence: Fence, row: WaveRow) -> WaveRow:
        """Records a wave's plan before it starts; returns the plan in force, which is the first one recorded.

        Raises `Fenced`.
        """
        with self._database.fenced(fence) as (connection, now):
            found = _waves(
                connection=connection, run=fence.run, branch=row.branch, iteration=row.iteration, wave=row.wave
            )
            if found:
                return found[0]
            extra = {"run": fence.run, "term": fence.term, "recorded_at": now}
            connection.execute(insert(Wave), asdict(row) | extra)
        return row

    def settle_wave(
        self, fence: Fence, branch: int, iteration: int, wave: int, outcome: Mapping[str, Any], warning: str = ""
    ) -> None:
        """Records the outcome of a planned wave, which is possible only once.

        It is durable before the next wave is planned, and before a phase that learns from it is dispatched. A warning becomes
        a link of the audit chain. Raises `Fenced`, `OutOfOrder`.
        """
        with self._database.fenced(fence, synced=False) as (connection, _):
            _set_outcome(
                connection=connection,
                change=_SETTLE_WAVE,
                key=given(run=fence.run, branch=branch, iteration=iteration, wave=wave),
                outcome=outcome,
                place=f"run {fence.run}, iteration {iteration}, wave {wave}",
            )
            if warning:
                body = {"branch": branch, "iteration": iteration, "wave": wave, "warning": warning}
                append(connection, lock_run(connection, self._database, fence.run), "sampling_short", body)

    def draws_nothing(self, run: str, branch: int, iteration: int) -> bool:
        """Returns True if an iteration's waves are settled and have no shards: what it learns from was sealed before it."""
        waves = self.waves(run, branch, iteration)
        return bool(waves) and all(wave.outcome is not None and wave.outcome["shards"] == 0 for wave in waves)

    def waves(self, run: str, branch: int, iteration: int) -> list[WaveRow]:
        """Returns the waves of an iteration in order."""
        with self._database.read() as connection:
            return _waves(connection, run, branch, iteration)

    def choice(self, fence: Fence, row: ChoiceRow) -> ChoiceRow:
        """Records a choice before it takes effect, with an event.

        Returns the choice in force, which is the first one recorded. The returned body has always been converted to
        JSON and back, so tuples have become lists. Raises `Fenced`.
        """
        with self._database.fenced(fence) as (connection, now):
            found = _choices(
                connection=connection, run=fence.run, branch=row.branch, iteration=row.iteration, name=row.name
            )
            if found:
                return found[0]
            chosen = replace(row, body=json.loads(canonical_json(row.body)), term=fence.term)
            connection.execute(insert(Choice), asdict(chosen) | {"run": fence.run, "recorded_at": now})
            append(connection, lock_run(connection, self._database, fence.run), "choice", asdict(chosen))
        return chosen

    def choices(self, run: str, branch: int, iteration: int) -> dict[str, ChoiceRow]:
        """Returns the choices made for an iteration, by name."""
        with self._database.read() as connection:
            return {row.name: row for row in _choices(connection, run, branch, iteration)}

    def decision(self, fence: Fence, row: DecisionRow) -> DecisionRow:
        """Records a decision before it takes effect; returns the decision in force, which is the first one recorded.

        It is durable once the iteration's first wave is planned, before which nothing is done under it. Raises `Fenced`.
        """
        with self._database.fenced(fence, synced=False) as (connection, now):
            found = _decisions(
                connection=connection, run=fence.run, branch=row.branch, iteration=row.iteration, seq=row.seq
            )
            if found:
                return found[0]
            extra = {"run": fence.run, "term": fence.term, "recorded_at": now}
            connection.execute(insert(PlacementDecision), asdict(row) | extra)
        return row

    def decision_outcome(self, fence: Fence, branch: int, iteration: int, seq: int, outcome: Mapping[str, Any]) -> None:
        """Records the actual outcome of a decision, which is possible only once; durable with the iteration's commit.

        Raises `Fenced`, `OutOfOrder`.
        """
        with self._database.fenced(fence, synced=False) as (connection, _):
            _set_outcome(
                connection=connection,
                change=_SET_DECISION_OUTCOME,
                key=given(run=fence.run, branch=branch, iteration=iteration, seq=seq),
                outcome=outcome,
                place=f"run {fence.run}, iteration {iteration}, decision {seq}",
            )

    def decisions(self, run: str, branch: int, iteration: int) -> list[DecisionRow]:
        """Returns the placement decisions of an iteration in order."""
        with self._database.read() as connection:
            return _decisions(connection, run, branch, iteration)

    def checkpoint(self, fence: Fence, row: CheckpointRow, told: Sequence[OutboxEntry] = ()) -> bool:
        """Records a published checkpoint; returns False if it is already recorded with the same manifest.

        told: outbox rows that tell the tracker about the checkpoint.

        Raises `Fenced`, `Conflict`.
        """
        with self._database.fenced(fence) as (connection, now):
            key = (*_iteration(CheckpointRow, fence.run, row.branch, row.iteration), CheckpointRow.term == row.term)
            found = connection.execute(select(CheckpointRow.manifest_sha256).where(*key)).one_or_none()
            if found is None:
                connection.execute(insert(CheckpointRow), asdict(row) | {"run": fence.run, "recorded_at": now})
                enqueue(connection, fence.run, told)
                return True
        if found.manifest_sha256 != row.manifest_sha256:
            raise Conflict(f"run {fence.run}: {row.folder} is recorded with a different manifest")
        return False

    def checkpoint_pruned(self, fence: Fence, row: CheckpointRow, told: Sequence[OutboxEntry] = ()) -> bool:
        """Marks a checkpoint as pruned before its files are deleted; its row stays.

        told: outbox rows that tell the tracker about it.

        Returns False if an alias points to the checkpoint, so that its files must stay. Raises `Fenced`.
        """
        with self._database.fenced(fence) as (connection, _):
            # A promotion locks the run too, so no alias can be moved to the checkpoint in between.
            lock_run(connection, self._database, fence.run)
            if CheckpointKey(row.branch, row.iteration, row.term) in pointing(connection, fence.run).values():
                return False
            key = (*_iteration(CheckpointRow, fence.run, row.branch, row.iteration), CheckpointRow.term == row.term)
            connection.execute(update(CheckpointRow).where(*key).values(state="pruned"))
            enqueue(connection, fence.run, told)
            return True

    def own_checkpoints(self, run: str, state: str | None = None) -> list[CheckpointRow]:
        """Returns the run's own checkpoints on all branches, newest first, without its parent's checkpoints.

        state: only checkpoints in this state.
        """
        columns = CheckpointRow.__table__.columns
        query = select(*columns).where(CheckpointRow.run == run)
        if state is not None:
            query = query.where(CheckpointRow.state == state)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(CheckpointRow.iteration.desc(), CheckpointRow.term.desc()))
            return [CheckpointRow(**row._mapping) for row in rows]

    def is_kept(self, row: CheckpointRow) -> bool:
        """Returns True if a checkpoint is still kept; it may have been pruned since its row was read."""
        return row in self.own_checkpoints(row.run, "kept")

    def checkpoints(self, run: str, state: str | None = "kept", branch: int | None = None) -> list[CheckpointRow]:
        """Returns the run's checkpoints along a branch's line, newest first; by default the current branch's.

        state: only checkpoints in this state; None for all states.

        For iterations that a fork inherited, these are the fork's own copies.
        """
        columns = CheckpointRow.__table__.columns
        with self._database.read() as connection:
            line = or_(
                *(
                    and_(
                        CheckpointRow.run == span.run,
                        CheckpointRow.branch == span.branch,
                        CheckpointRow.iteration.between(span.first, span.last),
                    )
                    for span in own_places(ancestry(connection, run, branch), run)
                )
            )
            query = select(*columns).where(line)
            if state is not None:
                query = query.where(CheckpointRow.state == state)
            rows = connection.execute(query.order_by(CheckpointRow.iteration.desc(), CheckpointRow.term.desc()))
            return [CheckpointRow(**row._mapping) for row in rows]


def _iteration(table: Any, run: str, branch: int, iteration: int) -> tuple[Any, ...]:
    return (table.run == run, table.branch == branch, table.iteration == iteration)


def _waves(connection: Connection, run: str, branch: int, iteration: int, wave: int | None = None) -> list[WaveRow]:
    place = given(run=run, branch=branch, iteration=iteration, wave=wave)
    rows = connection.execute(_WAVES if wave is None else _WAVE, place)
    return [WaveRow(**row._mapping) for row in rows]


def _choices(connection: Connection, run: str, branch: int, iteration: int, name: str | None = None) -> list[ChoiceRow]:
    place = given(run=run, branch=branch, iteration=iteration, name=name)
    rows = connection.execute(_CHOICES if name is None else _CHOICE, place)
    return [ChoiceRow(**row._mapping) for row in rows]


def _decisions(
    connection: Connection, run: str, branch: int, iteration: int, seq: int | None = None
) -> list[DecisionRow]:
    place = given(run=run, branch=branch, iteration=iteration, seq=seq)
    rows = connection.execute(_DECISIONS if seq is None else _DECISION, place)
    return [DecisionRow(**row._mapping) for row in rows]


def _set_outcome(
    connection: Connection, change: Update, key: Mapping[str, Any], outcome: Mapping[str, Any], place: str
) -> None:
    if connection.execute(change, {**key, "found": outcome}).rowcount != 1:
        raise OutOfOrder(f"{place}: it was never planned, or its outcome is already recorded")
