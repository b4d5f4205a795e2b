"""The API route that starts a new run, and the list of specs that may be started. They need a named token.

Consumes the text of a spec, or the name of a run or of a file in `HOME/specs` whose spec is meant, with changes. Has it
checked as `yatt train` checks it and the run created, in a process of its own (`ops.preflight.apart`), and starts its driver as
`resume` does. Nothing that the spec names is imported, called or read here. Who may not author can name no code, files,
addresses or secrets that the spec of the run or of the file does not name. A spec that is refused is in the audit chain of the
home, one that is not is the first action in that of the run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BeforeValidator, Field, model_validator

from db.write.home_events import CREATION_REFUSED
from ops.dashboard.actions import Done
from ops.people.roles import Permission, Person
from ops.preflight.apart import RunRequest, made_apart
from ops.queries.run_list import find_line
from ops.web.access import Operator
from ops.web.bodies import Body
from ops.web.context import Context, Served
from ops.web.driving import start_driver
from ops.web.problems import InvalidSpec
from ops.web.texts import Like, Reason, Text, as_unix_lines
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.logs import redact

router = APIRouter(prefix="/api/v1", tags=["actions"])
SPEC_CHARACTERS = 40_000
OVERRIDES = 200
FILE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.ya?ml$"
OVERRIDDEN = r"[A-Za-z0-9_.-]{1,200}"
"""A key whose value is changed."""
LONGEST_WHY = 4_000
"""Characters of an error that the audit chain keeps."""
REFUSAL = (
    "this needs the permission to author, which an admin grants with `yatt user grant {name} author`; without it, start the "
    "spec of a run or of a file in the home's specs, and change only keys that name nothing"
)
SpecText = Annotated[
    str,
    Field(max_length=SPEC_CHARACTERS),
    Like(r"^[^\x00]*$", "a text without NUL characters"),
    BeforeValidator(as_unix_lines),
]
Override = Annotated[str, Field(min_length=3, max_length=2_000), Like(r"^[^\x00]*$", "KEY=VALUE, as --set takes it")]


class NewRun(Body):
    """A request to start a run: from one of `spec`, `run` and `file`.

    spec: YAML, as in a spec file. What it names needs the permission to author.
    run: the full id of a run whose newest spec is meant.
    file: the name of a file in the home's folder `specs`.
    overrides: changes to that spec, each as KEY=VALUE.
    """

    spec: SpecText = ""
    run: Text = ""
    file: Annotated[str, Like(rf"{FILE}|^$", "the name of a file in the home's folder specs")] = ""
    overrides: Annotated[tuple[Override, ...], Field(max_length=OVERRIDES)] = ()
    reason: Reason = ""

    @model_validator(mode="after")
    def _from_one(self) -> Self:
        given = [name for name in ("spec", "run", "file") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"expected one of spec, run and file (given: {', '.join(given) or 'none'})")
        return self

    @property
    def origin(self) -> dict[str, str]:
        """What the run is to be made from, for the audit chain."""
        if self.spec:
            return {"spec_sha256": hashlib.sha256(self.spec.encode()).hexdigest()}
        return {"run": self.run} if self.run else {"file": self.file}


@router.get("/specs")
def list_specs(served: Served, _: Operator) -> list[str]:
    """Lists the files in the home's folder `specs`."""
    return spec_names(served)


@router.post("/runs", status_code=HTTPStatus.ACCEPTED)
def start(served: Served, person: Operator, asked: NewRun) -> Done:
    """Checks a spec, creates a run and starts its driver. All mistakes of the spec are in `errors`, warnings in `detail`."""
    run, warnings = create(served, person, asked)
    return drive(served=served, by=person.name, run=run, reason=asked.reason, warnings=warnings)


def spec_names(served: Context) -> list[str]:
    """Returns the names of the specs that may be started by name."""
    folder = served.home.specs
    return sorted(path.name for path in folder.iterdir() if re.match(FILE, path.name)) if folder.is_dir() else []


def create(served: Context, person: Person, asked: NewRun) -> tuple[str, list[str]]:
    """Checks a spec and creates a run in a person's name; returns its id, and warnings.

    A refusal is recorded in the audit chain of the home. Raises `InvalidSpec` with all mistakes of the spec,
    `InfrastructureError`, `RunNotFound`, and `HTTPException` 503 during another check.
    """
    may_name = Permission.AUTHOR in person.permissions
    wanted = RunRequest(
        text=asked.spec or None,
        run=find_line(served.ledger, asked.run).id if asked.run else None,
        file=asked.file or None,
        overrides=asked.overrides,
        refusal=None if may_name else REFUSAL.format(name=person.name),
        by=person.name,
    )
    with served.checking():
        try:
            if asked.file and asked.file not in spec_names(served):
                raise ConfigurationError(f"file: there is no {asked.file} in the home's folder specs")
            made = made_apart(served.home, wanted)
        except (ConfigurationError, InfrastructureError) as error:
            served.ledger.home_events.append(CREATION_REFUSED, refusal_of(person, asked, error))
            if isinstance(error, ConfigurationError):
                raise InvalidSpec(str(error)) from None
            raise
    return made.run, made.warnings


def refusal_of(person: Person, asked: NewRun, error: YattError) -> dict[str, object]:
    """Returns what the audit chain says of a request that was refused."""
    keys = [override.partition("=")[0] for override in asked.overrides]  # their values may be secrets
    return {
        "by": person.name,
        **asked.origin,
        "overrides": [key for key in keys if re.fullmatch(OVERRIDDEN, key)],
        "reason": asked.reason,
        "why": redact(str(error))[:LONGEST_WHY],
        "failure_class": error.failure_class,
    }


def drive(served: Context, by: str, run: str, reason: str, warnings: Sequence[str] = ()) -> Done:
    """Starts the driver of a new run."""
    pid = start_driver(drivers=served.drivers, ledger=served.ledger, home=served.home, run=run, by=by, reason=reason)
    detail = "; ".join([f"a driver is starting, pid {pid}", *(f"warning: {each}" for each in warnings)])
    return Done(action="start", by=by, detail=detail, run=find_line(served.ledger, run))
