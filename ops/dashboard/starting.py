"""The API route that starts a new run from the text of a spec. It needs a named token.

Consumes YAML; checks it as `yatt train` does, creates the run and starts its driver as `resume` does. File names in the spec
are absolute, since the text has no folder of its own. The driver's request, with the caller's name, is the first action in the
run's audit chain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flows.run.creation import create_run
from flows.run.home import Home
from ops.dashboard.access import Acting
from ops.dashboard.actions import Done
from ops.dashboard.context import Context, Served
from ops.dashboard.driving import start_driver
from ops.dashboard.problems import InvalidSpec
from ops.dashboard.texts import Like, Reason, as_unix_lines
from ops.preflight.run import check_before_start
from ops.queries.run_list import find_line
from yatt_core.errors import ConfigurationError
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec, load_spec

router = APIRouter(prefix="/api/v1", tags=["actions"])
SPEC_CHARACTERS = 40_000
ORIGIN = "spec"
SpecText = Annotated[
    str,
    Field(min_length=1, max_length=SPEC_CHARACTERS),
    Like(r"^[^\x00]*$", "a text without NUL characters"),
    BeforeValidator(as_unix_lines),
]


class NewRun(BaseModel):
    """A request to start a run.

    spec: YAML, as in a spec file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: SpecText
    reason: Reason = ""


@router.post("/runs", status_code=HTTPStatus.ACCEPTED)
def start(served: Served, by: Acting, asked: NewRun) -> Done:
    """Checks a spec, creates a run and starts its driver. All mistakes of the spec are in `errors`, warnings in `detail`."""
    run, warnings = create(served, by, asked)
    return drive(served, by, run, asked.reason, warnings)


def create(served: Context, by: str, asked: NewRun) -> tuple[str, list[str]]:
    """Checks a spec and creates a run in a person's name; returns its id, and warnings.

    Raises `InvalidSpec` with all mistakes of the spec, `InfrastructureError`, and `HTTPException` 503 during another check.
    """
    with served.checking():
        try:
            spec, warnings = checked_spec(served.home, asked.spec)
        finally:
            reward_process().close()  # with the modules of the checked functions, whose files may change
    return create_run(served.home, spec, by=by), warnings


def drive(served: Context, by: str, run: str, reason: str, warnings: Sequence[str] = ()) -> Done:
    """Starts the driver of a new run."""
    pid = start_driver(served.drivers, served.ledger, served.home, run, by, reason)
    detail = "; ".join([f"a driver is starting, pid {pid}", *(f"warning: {each}" for each in warnings)])
    return Done(action="start", by=by, detail=detail, run=find_line(served.ledger, run))


def checked_spec(home: Home, text: str) -> tuple[RunSpec, list[str]]:
    """Returns the spec in a text, and warnings. Raises `InvalidSpec` with all its mistakes, `InfrastructureError`."""
    with tempfile.TemporaryDirectory(prefix="yatt-spec-") as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            spec = load_spec(path, (), with_files=True)
            warnings = check_before_start(home.folder, spec).warnings
        except ConfigurationError as error:
            raise InvalidSpec(str(error).replace(str(path), ORIGIN).replace(folder, ORIGIN)) from None
    return spec, warnings
