"""Outbox rows for the tracker's model registry: a model version for each checkpoint, and aliases.

Consumes checkpoints and alias moves from the ledger. Produces outbox rows with deterministic ids, to be written in
the same transaction as the change they report. Each row has everything that the registry needs to know about its
checkpoint, so the first row to arrive can create a missing version (tracking may have been off when the checkpoint
was taken).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from db.write.aliases import AliasMove
from db.write.outbox import CHECKPOINT, OutboxEntry
from flows.delivery.outbox import row_id
from flows.run.trackers import in_mlflow
from yatt_core.spec import RunSpec

ALIAS = "alias"
"""The kind of outbox rows about aliases."""


class Published(Protocol):
    """The fields that a checkpoint's row and an alias move have in common."""

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


def registered_model(spec_name: str) -> str:
    """Returns the name of the model that all runs of a spec share: the spec's name, which has no forbidden characters."""
    return spec_name


def version_id(checkpoint: Published) -> str:
    """Returns the search key for a checkpoint's version: the id of the first outbox row about it."""
    return version_key(checkpoint.run, checkpoint.branch, checkpoint.iteration, checkpoint.term)


def version_key(run: str, branch: int, iteration: int, term: int) -> str:
    """Returns the search key for the version of the checkpoint with these numbers."""
    return row_id(run, branch, f"checkpoint-i{iteration}-t{term}")


def published_entries(spec: RunSpec, checkpoint: Published) -> list[OutboxEntry]:
    """Returns the rows that announce a new checkpoint; empty if it is not in MLflow."""
    return (
        [OutboxEntry(version_id(checkpoint), CHECKPOINT, _body(spec, checkpoint, "kept"), _now())]
        if in_mlflow(spec)
        else []
    )


def pruned_entries(spec: RunSpec, checkpoint: Published) -> list[OutboxEntry]:
    """Returns the rows that announce the deletion of a checkpoint's files; empty if it is not in MLflow."""
    entry = OutboxEntry(f"{version_id(checkpoint)}/pruned", CHECKPOINT, _body(spec, checkpoint, "pruned"), _now())
    return [entry] if in_mlflow(spec) else []


def moved_entries(spec: RunSpec, moves: Sequence[AliasMove]) -> list[OutboxEntry]:
    """Returns the rows that announce alias moves: the new target, by whom and why; empty if it is not in MLflow."""
    return [_moved_entry(spec, move) for move in moves] if in_mlflow(spec) else []


def _moved_entry(spec: RunSpec, move: AliasMove) -> OutboxEntry:
    said = {"alias": move.alias, "number": move.number, "by": move.by, "why": move.why, "at": move.at}
    key = row_id(move.run, move.branch, f"alias-{move.number}")
    return OutboxEntry(key, ALIAS, {**_body(spec, move, move.state), **said}, move.at)


def _body(spec: RunSpec, checkpoint: Published, state: str) -> dict[str, Any]:
    return {
        "model": registered_model(spec.name),
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
