"""The steps of maintenance with MLflow as tracker; imports no Prefect."""

from __future__ import annotations

from collections.abc import Mapping

from flows.maintenance.runner import Step
from flows.maintenance.settings import NAME, MaintenanceSettings
from flows.maintenance.steps import steps_of
from flows.run.home import Home
from ops.integrations.mlflow_reader import reader_of
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.people.settings_files import SETTINGS_FILES, TOKEN_FILES


def steps(home: Home, settings: MaintenanceSettings) -> Mapping[str, Step]:
    """Returns the steps by name, in order."""
    tracker = MlflowTracker(home.tracking_uri, home.artifacts)
    tokens = TOKEN_FILES if settings.backup is not None and settings.backup.tokens else ()
    files = (*SETTINGS_FILES, *tokens, NAME)
    return steps_of(
        home=home,
        settings=settings,
        tracker=tracker,
        reader_of=lambda ledger, run: reader_of(home, ledger, run),
        files=files,
    )
