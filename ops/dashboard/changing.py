"""API routes that fork a run or change its settings. Each needs a named person.

Consumes changes as `--set` takes them. Has them checked and carried out as `yatt fork` and `yatt resume --set` do, in a process
of its own (`ops.preflight.apart`): nothing that a spec names is imported, called or read here. Who may not author can name no
code, files, addresses or secrets that the run's spec does not name. A refusal is in the audit chain of the home.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from db.write.home_events import CREATION_REFUSED
from ops.dashboard.actions import Done
from ops.dashboard.starting import OVERRIDES, REFUSAL, NewRun, Override, refusal_of
from ops.people.roles import Permission, Person
from ops.preflight.apart import Made, RunRequest, made_apart
from ops.queries.run_list import find_line
from ops.web.access import Operator
from ops.web.bodies import Body, Flag, Whole
from ops.web.context import Context, RunId, Served
from ops.web.problems import InvalidSpec
from ops.web.texts import Like
from yatt_core.errors import ConfigurationError, InfrastructureError

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["actions"])
SpecName = Annotated[str, Field(max_length=100), Like(r"^[A-Za-z0-9._-]*$", "a name as a spec has it")]


class Fork(Body):
    """A request for a run that begins after an iteration of this one.

    at: the iteration.
    overrides: changes to the spec, each as KEY=VALUE.
    name: the new run's; empty: that in the spec.
    branch: the branch to fork from; None: the current one.
    """

    at: Whole
    overrides: Annotated[tuple[Override, ...], Field(max_length=OVERRIDES)] = ()
    name: SpecName = ""
    branch: Whole | None = None


class SettingsChange(Body):
    """A request to change settings, from the next iteration on.

    overrides: changes to the spec, each as KEY=VALUE.
    discard: samples of the open iteration that were made with the old values are discarded.
    """

    overrides: Annotated[tuple[Override, ...], Field(min_length=1, max_length=OVERRIDES)]
    discard: Flag = False


@router.post("/fork", status_code=HTTPStatus.CREATED)
def fork(served: Served, person: Operator, run_id: RunId, asked: Fork) -> Done:
    """Creates a fork. It is not started; that takes a separate request."""
    named = (*asked.overrides, *([f"name={asked.name}"] if asked.name else []))
    wanted = replace(_asked(person, run_id, named), act="fork", at=asked.at, branch=asked.branch)
    made = _made(served, person, wanted)
    return Done(action="fork", by=person.name, detail=made.done, run=find_line(served.ledger, made.run))


@router.post("/settings")
def change(served: Served, person: Operator, run_id: RunId, asked: SettingsChange) -> Done:
    """Changes settings of a run without a driver, as a new revision of its spec. The run is not resumed."""
    served.drivers.require_idle(served.ledger, run_id)
    wanted = replace(_asked(person, run_id, asked.overrides), act="revise", discard=asked.discard)
    made = _made(served, person, wanted)
    return Done(action="settings", by=person.name, detail=made.done, run=find_line(served.ledger, run_id))


def _asked(person: Person, run: str, overrides: tuple[str, ...]) -> RunRequest:
    refusal = None if Permission.AUTHOR in person.permissions else REFUSAL.format(name=person.name)
    return RunRequest(text=None, run=run, file=None, overrides=overrides, refusal=refusal, by=person.name)


def _made(served: Context, person: Person, wanted: RunRequest) -> Made:
    """Carries a change out. Raises as `starting.create` does."""
    run = find_line(served.ledger, wanted.run or "").id
    with served.checking():
        try:
            return made_apart(served.home, wanted)
        except (ConfigurationError, InfrastructureError) as error:
            request = NewRun(run=run, overrides=wanted.overrides, reason=wanted.act)
            served.ledger.home_events.append(CREATION_REFUSED, refusal_of(person, request, error))
            if isinstance(error, ConfigurationError):
                raise InvalidSpec(str(error)) from None
            raise
