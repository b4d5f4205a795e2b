"""The contract between a pipeline and what does the work of its jobs in this process or beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flows.members.driving import Drives, Tell
from flows.soups.runner import OpenMeter
from yatt_core.spec import RunSpec


class Evaluates(Protocol):
    """Measures a checkpoint of a run, on its held-out tasks or on a suite; returns the figures by name."""

    def __call__(self, run: str, iteration: int, suite: Path | None) -> Mapping[str, Any]: ...


class Exports(Protocol):
    """Writes a checkpoint of a run into a folder that does not exist, at once or not at all."""

    def __call__(self, run: str, iteration: int, to: Path, dtype: str | None) -> None: ...


class Promotes(Protocol):
    """Gives a checkpoint an alias; returns the number of the approval that it waits for, None if it waits for none."""

    def __call__(self, run: str, iteration: int, alias: str, why: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What does the work of jobs.

    drives: returns what drives runs.
    require_devices: raises `ConfigurationError` if a run could never have its devices.
    open_meter: opens a meter for soups.
    tell: called with each step, for people.
    by: who runs the pipeline.
    """

    drives: Callable[[], Drives]
    require_devices: Callable[[RunSpec], None]
    evaluate: Evaluates
    export: Exports
    promote: Promotes
    open_meter: OpenMeter
    tell: Tell
    by: str
