"""What maintenance did: `maintenance.json` in the home folder, newest first, replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from flows.run.home import Home
from yatt_core import durable
from yatt_core.errors import InfrastructureError

NAME = "maintenance.json"
KEPT = 30


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step of maintenance.

    ok: False if it failed, or found something wrong.
    said: what was done or found.
    """

    name: str
    ok: bool
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """One time that maintenance ran. Times are seconds since 1970.

    by: who started it: a person, or the flow run.
    """

    began_at: float
    ended_at: float
    by: str
    steps: tuple[StepResult, ...]

    @property
    def ok(self) -> bool:
        """True if every step succeeded."""
        return all(step.ok for step in self.steps)

    @property
    def trouble(self) -> str:
        """What the steps that did not succeed said; empty if all did."""
        return "; ".join(f"{step.name}: {step.said}" for step in self.steps if not step.ok)


def read_results(home: Home) -> Sequence[MaintenanceResult]:
    """Returns the results, newest first. Raises `InfrastructureError` for a damaged file."""
    path = home.folder / NAME
    try:
        rows = json.loads(path.read_text())["results"]
        return [
            MaintenanceResult(**{**row, "steps": tuple(StepResult(**step) for step in row["steps"])}) for row in rows
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{path}: not valid ({error}); remove it") from None


def add_result(home: Home, result: MaintenanceResult) -> None:
    """Adds the newest result. Raises `InfrastructureError` if the disk fails."""
    results = [result, *read_results(home)][:KEPT]
    durable.write_json(home.folder / NAME, {"results": [asdict(each) for each in results]})
