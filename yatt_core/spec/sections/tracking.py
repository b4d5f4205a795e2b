"""Where a run's metrics go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator, model_validator

from yatt_core.naming import Names
from yatt_core.secret_references import SecretReference
from yatt_core.spec.base import SpecModel
from yatt_core.tracker_kinds import TRACKER_KINDS

NOT_IN_PROJECTS = "/\\#?%:"
LONGEST_PROJECT = 128
"""Characters that the name of a W&B project cannot contain, and its maximum length."""
if TYPE_CHECKING:
    TrackerName = str
else:
    TrackerName = Literal[tuple(TRACKER_KINDS)]
TagName = Annotated[str, Field(pattern=r"^[\w\-. :/]{1,200}$")]
TagValue = Annotated[str, Field(max_length=5000)]


class TrackingSpec(SpecModel):
    """Experiment tracking with MLflow, TensorBoard and Weights & Biases."""

    trackers: tuple[TrackerName, ...] = Field(default=("mlflow",), min_length=1)
    """Where metrics go: any of `mlflow`, `tensorboard` (extra `tensorboard`) and `wandb` (extra `wandb`)."""
    experiment: str = "yatt"
    """Name of the MLflow experiment, and of the W&B project, to which the run belongs."""
    enabled: bool = True
    """If false, metrics are stored in the ledger only."""
    tensorboard_folder: Annotated[str | None, Names("path")] = None
    """Folder of the event files, which receives a folder for each run; by default `tensorboard/` in the run's folder."""
    wandb_mode: Literal["online", "offline"] = "online"
    """`online` needs `wandb_credential`; `offline` writes files into the run's folder, for `wandb sync`."""
    wandb_credential: Annotated[SecretReference, Names("secret")] = SecretReference(env="WANDB_API_KEY")
    """Where the key for W&B is."""
    wandb_entity: str | None = None
    """User or team on W&B to which the project belongs; None: the key's default."""
    tags: dict[TagName, TagValue] = Field(default_factory=dict)
    """Tags of your own for the tracked run, by name; names do not begin with `yatt.` or `mlflow.`."""
    reports: bool = True
    """If true, the tracked run receives the learning curve, where the time went and a table of samples whenever a session
    ends, and of a workload's images a sheet for each iteration that is evaluated."""
    samples: int = Field(default=20, ge=0, le=1000)
    """Number of samples of the newest iteration in that table; 0: none, and no sheets of images, so that no sample leaves the
    run's folder."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trackers; empty if tracking is off."""
        return self.trackers if self.enabled else ()

    @field_validator("trackers")
    @classmethod
    def _check_trackers(cls, trackers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(trackers)) < len(trackers):
            raise ValueError("each tracker can be listed once only")
        return trackers

    @model_validator(mode="after")
    def _check_project(self) -> TrackingSpec:
        wrong = set(self.experiment) & set(NOT_IN_PROJECTS)
        if "wandb" in self.trackers and (wrong or not 0 < len(self.experiment) <= LONGEST_PROJECT):
            raise ValueError(
                f"experiment: {self.experiment!r} cannot be a project of W&B: expected 1 to {LONGEST_PROJECT} characters, "
                f"none of {' '.join(NOT_IN_PROJECTS)}"
            )
        return self

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        taken = [name for name in tags if name.startswith(("yatt.", "mlflow."))]
        if taken:
            raise ValueError(f"{taken[0]!r}: names that begin with yatt. or mlflow. are not available; choose another")
        return tags
