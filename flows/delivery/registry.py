"""What the tracker's model registry is told: every checkpoint as a version of the run's registered model, and where aliases point.

Consumes checkpoints and moves of aliases as the ledger has them. Produces outbox rows with deterministic ids, to be written in
the transaction of what they tell. Each tells all that the registry needs to know of its checkpoint, so that a version which is not
there yet (tracking was off when the checkpoint was taken) is made by whatever comes first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from db.write.aliases import AliasMove
from db.write.outbox import OutboxEntry
from flows.delivery.outbox import row_id
from yatt_core.spec import RunSpec

CHECKPOINT, ALIAS = "checkpoint", "alias"
"""Kinds of outbox rows."""


class Published(Protocol):
    """What a checkpoint's row and a move of an alias have in common."""

    @property
    def run(self) -> str: ...
    @property
    def branch(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def folder(self) -> str: ...
    @property
    def manifest_sha256(self) -> str: ...
    @property
    def weights_digest(self) -> str: ...


def registered_model(run: str) -> str:
    """The name under which a run's checkpoints are registered; a run's id is free of what such names may not hold."""
    return run


def version_id(checkpoint: Published) -> str:
    """What the version of a checkpoint is searched for by; the id of the outbox row that first tells of it."""
    return row_id(checkpoint.run, checkpoint.branch, f"checkpoint-i{checkpoint.iteration}-t{checkpoint.term}")


def published_entries(spec: RunSpec, checkpoint: Published) -> list[OutboxEntry]:
    """Tells that a checkpoint is there; nothing where the run is not tracked."""
    return (
        [OutboxEntry(version_id(checkpoint), CHECKPOINT, _body(checkpoint, "kept"), _now())]
        if spec.tracking.enabled
        else []
    )


def pruned_entries(spec: RunSpec, checkpoint: Published) -> list[OutboxEntry]:
    """Tells that a checkpoint's files go."""
    entry = OutboxEntry(f"{version_id(checkpoint)}/pruned", CHECKPOINT, _body(checkpoint, "pruned"), _now())
    return [entry] if spec.tracking.enabled else []


def moved_entries(spec: RunSpec, moves: Sequence[AliasMove]) -> list[OutboxEntry]:
    """Tells where aliases point from now on, by whose decision and why."""
    return [_moved_entry(move) for move in moves] if spec.tracking.enabled else []


def _moved_entry(move: AliasMove) -> OutboxEntry:
    said = {"alias": move.alias, "number": move.number, "by": move.by, "why": move.why, "at": move.at}
    key = row_id(move.run, move.branch, f"alias-{move.number}")
    return OutboxEntry(key, ALIAS, {**_body(move, move.state), **said}, move.at)


def _body(checkpoint: Published, state: str) -> dict[str, Any]:
    return {
        "model": registered_model(checkpoint.run),
        "version_id": version_id(checkpoint),
        "branch": checkpoint.branch,
        "iteration": checkpoint.iteration,
        "term": checkpoint.term,
        "folder": checkpoint.folder,
        "manifest_sha256": checkpoint.manifest_sha256,
        "weights_digest": checkpoint.weights_digest,
        "state": state,
    }


def _now() -> int:
    return int(time.time() * 1000)
