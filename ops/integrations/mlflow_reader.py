"""Implements the flow's `MetricsReader` with MLflow: reads recorded metrics point by point, for audits.

Consumes the address of an MLflow store or server; changes nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.protocols import TrackedPoint
from ops.integrations.mlflow_tracker import MlflowTracker


class MlflowReader:
    """Reads from an MLflow store or server."""

    def __init__(self, tracking_uri: str, artifacts: Path) -> None:
        self._tracker = MlflowTracker(tracking_uri, artifacts)

    def points(self, tracking_run: str, key: str) -> Sequence[TrackedPoint]:
        """Returns all points of a metric; empty if it is unknown.

        Raises `InfrastructureError` if MLflow cannot be reached.
        """
        with self._tracker.client() as client:
            history = client.get_metric_history(tracking_run, key)
        return [TrackedPoint(point.step, point.timestamp, point.value) for point in history]


def reader_of(home: Home, ledger: Ledger, run: str) -> MlflowReader | None:
    """Returns a reader of a run's metrics; None if nothing has been delivered to MLflow yet."""
    if ledger.runs.find(run).mlflow_run_id is None:
        return None
    return MlflowReader(home.tracking_uri, home.artifacts)
