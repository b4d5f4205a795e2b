"""Builds the trackers that a spec names: MLflow and TensorBoard."""

from __future__ import annotations

from flows.run.home import Home
from flows.run.protocols import Tracker
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.tensorboard_tracker import TensorboardTracker
from yatt_core.errors import ConfigurationError
from yatt_core.installed import TRACKERS, has_distribution
from yatt_core.spec import RunSpec


def trackers_of(home: Home, spec: RunSpec) -> dict[str, Tracker]:
    """Returns the trackers of a run by name; empty if it is not tracked. Raises as `tracker_of` does."""
    return {name: tracker_of(name, home, spec) for name in spec.tracking.names}


def tracker_of(name: str, home: Home, spec: RunSpec) -> Tracker:
    """Returns a tracker. Raises `ConfigurationError` if its package is not installed."""
    package = TRACKERS.get(name)
    if package is not None and not has_distribution(package):
        raise ConfigurationError(f"tracking.trackers: {package} is not installed; install yatt[{name}]")
    if name == "tensorboard":
        return TensorboardTracker(home, spec.tracking.tensorboard_folder)
    return MlflowTracker(home.tracking_uri, home.artifacts)
