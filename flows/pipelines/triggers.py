"""What begins a deployed pipeline: a schedule, data that changed, an alias that moved, the end of another pipeline.

Produces the models of `triggers` in a pipeline's file. Conditions are checked in `flows/pipelines/conditions.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from yatt_core.digests import json_digest
from yatt_core.section import SpecModel


class ScheduleTrigger(SpecModel):
    """Begins at the times of a schedule."""

    kind: Literal["schedule"]
    cron: str | None = None
    """Minute, hour, day, month, weekday, such as `0 22 * * *`."""
    interval: str | None = None
    """Time between two starts, such as `6h` or `1d`, counted from midnight of 1 January 2020 in the time zone."""
    timezone: str = "UTC"
    """An IANA time zone, such as `Europe/Berlin`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ScheduleTrigger:
        if (self.cron is None) == (self.interval is None):
            raise ValueError("expected exactly one of cron and interval, such as interval: 6h")
        return self


class DataTrigger(SpecModel):
    """Begins if the contents of a file, or of any file in a folder, have changed."""

    kind: Literal["data"]
    path: str = Field(min_length=1)
    """The file or folder, relative to the pipeline's file; it need not exist yet."""


class AliasTrigger(SpecModel):
    """Begins if an alias of the registry has moved."""

    kind: Literal["alias"]
    run: str = Field(min_length=1)
    """A run's id, such as `letters-3`, or the name of a spec for all its runs, such as `letters`."""
    alias: Literal["candidate", "champion", "rollback"] = "champion"
    """The alias."""


class PipelineTrigger(SpecModel):
    """Begins if a run of another pipeline has finished."""

    kind: Literal["pipeline"]
    name: str = Field(min_length=1)
    """Name of the other pipeline."""


Trigger = Annotated[ScheduleTrigger | DataTrigger | AliasTrigger | PipelineTrigger, Field(discriminator="kind")]


def trigger_key(trigger: Trigger, folder: Path) -> str:
    """Returns what identifies a trigger of a pipeline, wherever it stands in the file.

    folder: what its path is relative to.
    """
    tree: dict[str, Any] = trigger.model_dump(mode="json")
    if isinstance(trigger, DataTrigger):
        tree["path"] = str((folder / trigger.path).resolve())
    return json_digest(tree)
