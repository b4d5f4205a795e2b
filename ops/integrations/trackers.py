"""Builds the trackers that a spec names: MLflow, TensorBoard and Weights & Biases."""

from __future__ import annotations

from flows.prefect_io.secret_blocks import read_block
from flows.run.home import Home
from flows.run.protocols import Tracker
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.tensorboard_tracker import TensorboardTracker
from ops.integrations.wandb_tracker import WandbTracker
from yatt_core.errors import ConfigurationError
from yatt_core.secret_references import resolve
from yatt_core.spec import RunSpec
from yatt_core.spec.availability import missing_tracker
from yatt_core.spec.sections.tracking import TrackingSpec


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
        tracking = spec.tracking
        return WandbTracker(home, tracking.wandb_mode, tracking.wandb_entity, wandb_key(tracking))
    return MlflowTracker(home.tracking_uri, home.artifacts)


def wandb_key(tracking: TrackingSpec) -> str:
    """Returns the key for W&B; empty if none is needed. Raises `ConfigurationError` if it is not where the spec says."""
    if "wandb" not in tracking.names or tracking.wandb_mode == "offline":
        return ""
    try:
        return resolve(tracking.wandb_credential, "tracking.wandb_credential", read_block)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"tracking.wandb_mode: online needs a key; provide it, or use offline: {error}"
        ) from None
