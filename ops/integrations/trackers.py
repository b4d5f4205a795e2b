"""Builds the trackers that a spec names: MLflow, TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

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


@dataclass(frozen=True, slots=True)
class TrackerMaking:
    """How a tracker of a kind is made.

    make: returns it for a home and a spec.
    check: raises `ConfigurationError` for what the spec says and `make` would refuse.
    """

    make: Callable[[Home, RunSpec], Tracker]
    check: Callable[[TrackingSpec], object] = lambda tracking: None


def trackers_of(home: Home, spec: RunSpec) -> dict[str, Tracker]:
    """Returns the trackers of a run by name; empty if it is not tracked. Raises as `tracker_of` does."""
    return {name: tracker_of(name, home, spec) for name in spec.tracking.names}


def tracker_of(name: str, home: Home, spec: RunSpec) -> Tracker:
    """Returns a tracker. Raises `ConfigurationError` if it cannot work here: a package or a key is missing."""
    if obstacle := missing_tracker(name):
        raise ConfigurationError(obstacle)
    return MAKING[name].make(home, spec)


def check_trackers(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if one of a run's trackers could not be made because of what the spec says."""
    for name in spec.tracking.names:
        MAKING[name].check(spec.tracking)


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


def _mlflow(home: Home, spec: RunSpec) -> Tracker:
    return MlflowTracker(home.tracking_uri, home.artifacts)


def _tensorboard(home: Home, spec: RunSpec) -> Tracker:
    return TensorboardTracker(home, spec.tracking.tensorboard_folder)


def _wandb(home: Home, spec: RunSpec) -> Tracker:
    tracking = spec.tracking
    return WandbTracker(home, tracking.wandb_mode, tracking.wandb_entity, wandb_key(tracking))


MAKING: Mapping[str, TrackerMaking] = MappingProxyType(
    {
        "mlflow": TrackerMaking(_mlflow),
        "tensorboard": TrackerMaking(_tensorboard),
        "wandb": TrackerMaking(_wandb, check=wandb_key),
    }
)
"""How the kinds of trackers (`yatt_core.tracker_kinds`) are made, by name."""
