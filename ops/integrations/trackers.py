"""Builds the trackers that a spec names: MLflow, TensorBoard and Weights & Biases."""

from __future__ import annotations

from flows.run.home import Home
from flows.run.protocols import Tracker
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.tensorboard_tracker import TensorboardTracker
from ops.integrations.wandb_tracker import WandbTracker
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec
from yatt_core.spec.availability import check_credentials, missing_tracker


def trackers_of(home: Home, spec: RunSpec) -> dict[str, Tracker]:
    """Returns the trackers of a run by name; empty if it is not tracked. Raises as `tracker_of` does."""
    return {name: tracker_of(name, home, spec) for name in spec.tracking.names}


def tracker_of(name: str, home: Home, spec: RunSpec) -> Tracker:
    """Returns a tracker. Raises `ConfigurationError` if it cannot work here: a package or a key is missing."""
    if obstacle := missing_tracker(name):
        raise ConfigurationError(obstacle)
    if name == "tensorboard":
        return TensorboardTracker(home, spec.tracking.tensorboard_folder)
    if name == "wandb":
        check_credentials(spec.tracking)
        return WandbTracker(home, spec.tracking.wandb_mode, spec.tracking.wandb_entity)
    return MlflowTracker(home.tracking_uri, home.artifacts)
