"""Reads the placement benchmarks' workloads from YAML files."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.placement.workload import Scenario
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import mistakes_in


def read_workload(path: Path) -> Scenario:
    """Reads the workload in a file. Raises `ConfigurationError` with one line per mistake."""
    tree = read_document(path)
    try:
        return Scenario.model_validate(tree)
    except ValidationError as error:
        lines = [f"{path}: {mistake}" for mistake in mistakes_in(error, Scenario)]
        raise ConfigurationError("\n".join(lines)) from None


def is_steady(workload: Scenario) -> bool:
    """Returns True if no schedule changes the load."""
    samples = workload.samples
    schedules = [
        samples.validity,
        *(v for d in (samples.prompt, samples.response, samples.judge) for v in (d.median, d.sigma)),
    ]
    return all(isinstance(schedule, float | int) for schedule in schedules)
