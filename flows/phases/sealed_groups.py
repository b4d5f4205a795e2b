"""Sealed shards as tasks name them, and with slices the groups in them: where each was sealed last, and what is learnt from.

Consumes the ledger's rows of shards and the recorded rounds. Produces what the trainer learns from, which may have been sealed in
earlier iterations, and how the controllers go on with what is in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from db.write.records import ShardRow
from flows.driver.context import RunContext
from flows.phases.waves import PlannedWave
from yatt_core.errors import InfrastructureError
from yatt_core.experience.shard_log import RecordedShard, read_learnt_facts
from yatt_core.experience.slicing import Slicing, StartedGroup, admission_of_groups
from yatt_core.protocols.receipts import Admission, LearntFacts, ShardPlace, ShardRef, SliceTask
from yatt_core.storage.lacking import fetch_lacking

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """Sealed shards in canonical order.

    admission: the groups to learn from; None for all of them.
    """

    shards: tuple[ShardRef, ...]
    admission: Admission | None


@dataclass(frozen=True, slots=True)
class SlicedExperience:
    """What an iteration with slices learns from, and what goes on.

    slicing: after its last round.
    facts: about each group that is learnt from, in the order of learning.
    """

    slicing: Slicing
    batch: SealedBatch
    facts: tuple[LearntFacts, ...]

    @classmethod
    def of(cls, context: RunContext, slicing: Slicing) -> SlicedExperience:
        """Returns the experience of an iteration whose rounds are settled, from the manifests of what it learns from."""
        rows = rows_at(context, context.branch, places_of(slicing.learnt))
        fetch_lacking(context.store, context.folder, list(rows.values()))
        facts = {place: read_learnt_facts(context.folder, row) for place, row in rows.items()}
        return cls(
            slicing=slicing,
            batch=learnt_batch(context, context.branch, slicing.learnt),
            facts=tuple(facts[_place(group)][group.ref.ordinal] for group in slicing.learnt),
        )


def references_of(rows: Iterable[ShardRow]) -> tuple[ShardRef, ...]:
    """Returns the shards as references for tasks."""
    return tuple(ShardRef(row.folder, row.manifest_sha256) for row in rows)


def split_shards(items: Sequence[Item], shards: int) -> list[tuple[Item, ...]]:
    """Splits prompts, or what belongs to each, into contiguous parts whose sizes differ by at most one."""
    bounds = [len(items) * i // max(shards, 1) for i in range(shards + 1)]
    return [tuple(items[bounds[i] : bounds[i + 1]]) for i in range(shards)]


def learnt_batch(context: RunContext, branch: int, learnt: Sequence[StartedGroup]) -> SealedBatch:
    """Returns groups, wherever they were sealed, as what the trainer learns from."""
    rows = rows_at(context, branch, places_of(learnt))
    return SealedBatch(learnt_references(learnt, rows), admission_of_groups(learnt))


def learnt_references(
    learnt: Sequence[StartedGroup], sealed: Mapping[ShardPlace, RecordedShard]
) -> tuple[ShardRef, ...]:
    """Returns the shards that have groups, in canonical order.

    With a tail a shard may also have a group as it was before a part of it was thrown away; it is not read from there.

    sealed: the recorded shards at the groups' places.
    """
    return tuple(
        ShardRef(
            folder=row.folder,
            manifest_sha256=row.manifest_sha256,
            without=tuple(
                sorted(
                    group.ref.ordinal
                    for group in learnt
                    if group.kept is not None and group.iteration <= place.iteration and place < _place(group)
                )
            ),
        )
        for place, row in sorted(sealed.items())
    )


def slice_tasks(context: RunContext, branch: int, wave: PlannedWave) -> dict[int, tuple[SliceTask, ...]]:
    """Returns how the responses to each shard's prompts go on, by shard; nothing for a wave that is drawn whole."""
    drawing = wave.round
    if drawing is None:
        return {}
    rows = rows_at(context, branch, {group.sealed for group in drawing.groups if group.sealed is not None})
    tasks = [
        SliceTask(
            started=group.iteration,
            tokens=tokens,
            place=group.sealed,
            sealed=None if group.sealed is None else references_of([rows[group.sealed]])[0],
            kept=group.kept,
        )
        for group, tokens in zip(drawing.groups, drawing.tokens, strict=True)
    ]
    return dict(enumerate(split_shards(tasks, wave.plan.shards)))


def sealed_before(wave: PlannedWave, shard: int) -> set[ShardPlace]:
    """Returns where the groups of a shard of a wave were sealed before it: what is needed to make it again."""
    if wave.round is None:
        return set()
    groups = split_shards(wave.round.groups, wave.plan.shards)[shard]
    return {group.sealed for group in groups if group.sealed is not None}


def places_of(groups: Iterable[StartedGroup]) -> set[ShardPlace]:
    """Returns where groups were sealed last; those of which nothing is drawn are nowhere."""
    return {group.sealed for group in groups if group.sealed is not None}


def rows_at(context: RunContext, branch: int, places: Collection[ShardPlace]) -> dict[ShardPlace, ShardRow]:
    """Returns the recorded shards at these places. Raises `InfrastructureError` if one is not in the ledger."""
    found = {
        ShardPlace(iteration, row.wave, row.shard): row
        for iteration in sorted({place.iteration for place in places})
        for row in context.ledger.records.shards(context.run, branch, iteration)
    }
    if missing := sorted(set(places) - found.keys()):
        raise InfrastructureError(f"run {context.run}: no shard is recorded at {missing[0]} of branch {branch}")
    return {place: found[place] for place in places}


def _place(group: StartedGroup) -> ShardPlace:
    assert group.sealed is not None, "what is learnt from is sealed"
    return group.sealed
