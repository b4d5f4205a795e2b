"""Which trackers a run's outbox rows go to. Each tracker has rows of its own, so that none holds up another."""

from __future__ import annotations

from collections.abc import Iterable

from db.write.outbox import MLFLOW, OutboxEntry
from yatt_core.spec import RunSpec


def for_trackers(spec: RunSpec, entries: Iterable[OutboxEntry]) -> list[OutboxEntry]:
    """Returns a copy of each entry for each of the run's trackers; empty if the run is not tracked."""
    return [entry.to(tracker) for entry in entries for tracker in spec.tracking.names]


def in_mlflow(spec: RunSpec) -> bool:
    """Returns True if MLflow is one of the run's trackers: only MLflow has a registry, and records datasets."""
    return MLFLOW in spec.tracking.names
