"""The kinds of trackers: what each needs, and what it leaves behind. One table, which all that names trackers reads.

Pure. How a tracker is made and checked stands in `ops.integrations.trackers`, whose keys are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _nothing(tracking: Mapping[str, Any], name: str) -> str | None:
    """Returns None: all that a run has in the tracker is deleted with it."""
    return None


@dataclass(frozen=True, slots=True)
class TrackerKind:
    """A kind of tracker.

    name: in `tracking.trackers`, and of the extra that installs what it needs.
    package: the distribution that the extra installs; None if YATT itself needs it.
    folder: its entry in the folders of runs; None if it has none.
    left_elsewhere: given a run's section `tracking` as recorded, and the run's name in the tracker, returns what a deleted run
        still has outside of its folder; None if that is nothing.
    """

    name: str
    package: str | None = None
    folder: str | None = None
    left_elsewhere: Callable[[Mapping[str, Any], str], str | None] = _nothing


def _left_by_tensorboard(tracking: Mapping[str, Any], name: str) -> str | None:
    folder = tracking.get("tensorboard_folder")
    return f"TensorBoard event file {Path(folder) / name}" if folder else None


def _left_by_wandb(tracking: Mapping[str, Any], name: str) -> str | None:
    return None if tracking.get("wandb_mode") == "offline" else f"Weights & Biases run {name}"


_KINDS = (
    TrackerKind("mlflow"),
    TrackerKind("tensorboard", package="tensorboardX", folder="tensorboard", left_elsewhere=_left_by_tensorboard),
    TrackerKind("wandb", package="wandb", folder="wandb", left_elsewhere=_left_by_wandb),
)
TRACKER_KINDS = {kind.name: kind for kind in _KINDS}
"""The kinds by name."""
