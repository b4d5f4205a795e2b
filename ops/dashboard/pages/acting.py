"""Handles forms: the API's actions for a signed-in person.

Consumes forms of the dashboard's pages; produces redirects to the page that shows the result. All checks are done by the API's
own functions (`ops.web.access`, `ops.dashboard.actions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException
from pydantic import field_validator
from starlette.responses import RedirectResponse, Response

from db.core.errors import LedgerError
from ops.dashboard import actions, annotating, changing, starting
from ops.dashboard.annotating import NoteRequest
from ops.queries.spec import spec_for_new_run
from ops.web.access import Acting, Administering, Approver, Operator
from ops.web.bodies import FormTexts
from ops.web.context import Number, RunId, Served
from ops.web.formats import run_url
from ops.web.frame import Visit, Visited
from ops.web.problems import status_of
from ops.web.texts import Text
from yatt_core.errors import YattError
from yatt_core.logs import redact

router = APIRouter(include_in_schema=False)


class StopForm(FormTexts, actions.StopRequest):
    """The form of `StopRequest`."""


class ResumeForm(FormTexts, actions.Resume):
    """The form of `Resume`."""


class RetryForm(FormTexts, actions.Retry):
    """The form of `Retry`."""


class RollbackForm(FormTexts, actions.Rollback):
    """The form of `Rollback`."""


class PromoteForm(FormTexts, actions.PromoteRequest):
    """The form of `PromoteRequest`."""


class DeleteForm(FormTexts, actions.Delete):
    """The form of `Delete`."""


FIELDS = ("text", "run", "file", "overrides", "reason")
"""What can be typed for a new run."""


class ChangeLines(FormTexts):
    """The first base of a form in which changes are the lines of one text."""

    @field_validator("overrides", mode="before", check_fields=False)
    @classmethod
    def _lines(cls, given: object) -> object:
        texts = given if isinstance(given, list | tuple) else [given]
        return [line.strip() for text in texts if isinstance(text, str) for line in text.splitlines() if line.strip()]


class NewRunForm(ChangeLines, starting.NewRun):
    """The form of `NewRun`."""


@router.get("/new")
def show_new_run(visit: Visited, run: Text = "") -> Response:
    """Shows the forms for a new run, filled with a run and its spec if one is named."""
    text = spec_for_new_run(visit.served.ledger, run) if run else ""
    return _forms(visit, HTTPStatus.OK, {"text": text, "run": run})


@router.post("/new")
def start_run(visit: Visited, person: Operator, asked: Annotated[NewRunForm, Form()]) -> Response:
    """Starts a run; if it cannot be created, shows the form again with what was typed and why."""
    try:
        run, _ = starting.create(visit.served, person, asked)
    except (YattError, LedgerError) as error:
        return _form_again(visit, asked, status_of(error, changing=True), str(error))
    except HTTPException as error:
        return _form_again(visit, asked, error.status_code, error.detail)
    starting.drive(visit.served, person.name, run, asked.reason)
    return redirect_after(run, "start")


def _form_again(visit: Visit, asked: NewRunForm, status: int, said: str) -> Response:
    typed = {"text": asked.spec, "run": asked.run, "file": asked.file, "reason": asked.reason}
    return _forms(visit, status, {**typed, "overrides": "\n".join(asked.overrides)}, redact(said).splitlines())


def _forms(visit: Visit, status: int, typed: Mapping[str, str], mistakes: Sequence[str] = ()) -> Response:
    """Shows the forms. typed: the contents of the fields, by name."""
    return visit.render(
        "new_run.html",
        status,
        typed={**dict.fromkeys(FIELDS, ""), **typed},
        mistakes=mistakes,
        files=starting.spec_names(visit.served) if visit.person is not None else [],
        longest=starting.SPEC_CHARACTERS,
    )


# -- actions ----------------------------------------------------------------------------------------------------------


@router.post("/runs/{run_id}/stop")
def stop(served: Served, by: Acting, run_id: RunId, asked: Annotated[StopForm, Form()]) -> Response:
    """Asks the run's driver to stop."""
    actions.stop(served, by, run_id, asked)
    return redirect_after(run_id, "stop")


@router.post("/runs/{run_id}/try-now")
def try_now(served: Served, by: Acting, run_id: RunId) -> Response:
    """Has the driver of a run that waits try at once."""
    actions.try_now(served, by, run_id)
    return redirect_after(run_id, "try-now")


@router.post("/runs/{run_id}/checkpoint")
def checkpoint(served: Served, by: Acting, run_id: RunId, asked: Annotated[actions.ActionRequest, Form()]) -> Response:
    """Asks the run's driver for a checkpoint."""
    actions.checkpoint(served, by, run_id, asked)
    return redirect_after(run_id, "checkpoint")


@router.post("/runs/{run_id}/resume")
def resume(served: Served, by: Acting, run_id: RunId, asked: Annotated[ResumeForm, Form()]) -> Response:
    """Starts a driver."""
    actions.resume(served, by, run_id, asked)
    return redirect_after(run_id, "resume")


@router.post("/runs/{run_id}/retry")
def retry(served: Served, by: Acting, run_id: RunId, asked: Annotated[RetryForm, Form()]) -> Response:
    """Restores a phase's retry budget, and starts a driver."""
    actions.retry(served, by, run_id, asked)
    return redirect_after(run_id, "retry")


@router.post("/runs/{run_id}/rollback")
def rollback(served: Served, by: Acting, run_id: RunId, asked: Annotated[RollbackForm, Form()]) -> Response:
    """Rolls the run back to an iteration, on a new branch."""
    actions.rollback(served, by, run_id, asked)
    return redirect_after(run_id, "rollback", "lineage")


class ForkForm(ChangeLines, changing.Fork):
    """The form of `Fork`."""


class SettingsForm(ChangeLines, changing.SettingsChange):
    """The form of `SettingsChange`."""


@router.post("/runs/{run_id}/fork")
def fork(served: Served, person: Operator, run_id: RunId, asked: Annotated[ForkForm, Form()]) -> Response:
    """Creates a fork, and shows it."""
    return redirect_after(changing.fork(served, person, run_id, asked).run.id, "fork")


@router.post("/runs/{run_id}/settings")
def change_settings(
    served: Served, person: Operator, run_id: RunId, asked: Annotated[SettingsForm, Form()]
) -> Response:
    """Changes settings."""
    changing.change(served, person, run_id, asked)
    return redirect_after(run_id, "settings", "spec")


@router.post("/runs/{run_id}/verify")
def verify(
    served: Served,
    by: Acting,
    run_id: RunId,
    iteration: Annotated[Number, Form()],
    branch: Annotated[Number | None, Form()] = None,
    term: Annotated[Number | None, Form()] = None,
) -> Response:
    """Reads every byte of a checkpoint."""
    actions.verify(served=served, by=by, run_id=run_id, iteration=iteration, branch=branch, term=term)
    return redirect_after(run_id, "verify", "checkpoints")


@router.post("/runs/{run_id}/promote")
def promote(served: Served, by: Approver, run_id: RunId, asked: Annotated[PromoteForm, Form()]) -> Response:
    """Points an alias at a checkpoint."""
    actions.promote(served, by, run_id, asked)
    return redirect_after(run_id, "promote", "checkpoints")


@router.post("/runs/{run_id}/archive")
def archive(
    served: Served, by: Administering, run_id: RunId, asked: Annotated[actions.ActionRequest, Form()]
) -> Response:
    """Deletes what a run that has ended no longer needs."""
    actions.archive(served, by, run_id, asked)
    return redirect_after(run_id, "archive")


@router.post("/runs/{run_id}/delete")
def delete(served: Served, by: Administering, run_id: RunId, asked: Annotated[DeleteForm, Form()]) -> Response:
    """Deletes a run; one that has begun only if the form says so."""
    deleted = actions.delete(served, by, run_id, asked)
    done = "delete-left" if deleted.left else "delete-elsewhere" if deleted.elsewhere else "delete"
    return RedirectResponse(f"/?done={done}", HTTPStatus.SEE_OTHER)


@router.post("/runs/{run_id}/note")
def write_note(served: Served, by: Acting, run_id: RunId, asked: Annotated[NoteRequest, Form()]) -> Response:
    """Replaces the run's note."""
    annotating.write_note(served, by, run_id, asked)
    return redirect_after(run_id, "note")


@router.post("/runs/{run_id}/tags")
def change_tags(
    served: Served,
    by: Acting,
    run_id: RunId,
    add: Annotated[Text, Form()] = "",
    remove: Annotated[Text, Form()] = "",
) -> Response:
    """Adds tags, separated by spaces or commas, and removes one."""
    added, removed = (tuple(text.replace(",", " ").split()) for text in (add, remove))
    served.ledger.annotations.change_tags(run_id, added, removed, by)
    return redirect_after(run_id, "tags")


def redirect_after(run: str, action: str, page: str = "") -> Response:
    """Returns a redirect to the page that shows the result of an action."""
    return RedirectResponse(run_url(run, page, done=action), HTTPStatus.SEE_OTHER)
