"""API routes that change a run: stop, checkpoint, resume, retry, roll back, promote, verify, archive, delete. Each needs a name.

Consumes requests authorized by `ops.web.access.acting`, and calls the same functions as the command line. The user's name
is recorded in the audit chain: in the event itself, as part of its reason, or in an event of its own.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from flows.disposal.archiving import archive_run
from flows.disposal.dependents import in_order
from flows.run.deletion import Deleted, delete_run
from ops.approvals.api import tell_registry
from ops.presentation.words import size
from ops.queries import checkpoints
from ops.queries.run_list import DRIVEN, ListedRun, find_line
from ops.web.access import Acting, Administering, Approver
from ops.web.bodies import Body, Flag, Whole
from ops.web.context import Context, Iteration, Number, RunId, Served
from ops.web.driving import start_driver
from ops.web.texts import GivenReason, PhaseName, Reason
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["actions"])


class ActionRequest(Body):
    """A request with an optional reason."""

    reason: Reason = ""


class StopRequest(ActionRequest):
    """A request to stop a run.

    within_seconds: stop within this time, if necessary in the middle of an iteration; None: after the current iteration.
    """

    within_seconds: Annotated[float, Field(strict=True, ge=0, le=7 * 86400, allow_inf_nan=False)] | None = None


class Resume(ActionRequest):
    """A request to resume a run.

    accept_drift: replay updates even if the environment has changed since.
    """

    accept_drift: Flag = False


class Retry(ActionRequest):
    """A request to restore a phase's retry budget.

    iteration: the iteration to be committed next.
    phase: the phase whose budget is restored.
    """

    iteration: Whole
    phase: PhaseName


class Delete(ActionRequest):
    """A request to delete a run.

    begun: it may have begun: its results are deleted for good.
    promoted: its checkpoints may have aliases in the registry.
    """

    begun: Flag = False
    promoted: Flag = False


class Rollback(ActionRequest):
    """A request to roll a run back.

    to: the last iteration to keep.
    """

    to: Whole


class PromoteRequest(Body):
    """A request to point an alias at a kept checkpoint.

    to: the alias.
    iteration, branch, term: select the checkpoint; if several match, the newest is used.
    why: the reason, recorded in the audit chain and shown in MLflow.
    """

    to: Literal["candidate", "champion", "rollback"]
    iteration: Whole | None = None
    branch: Whole | None = None
    term: Whole | None = None
    why: GivenReason


class Done(BaseModel):
    """What was done, by whom, and the run's status afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str
    by: str
    detail: str
    run: ListedRun


class Verified(BaseModel):
    """The result of a verification, which is also recorded in the audit chain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    branch: int
    iteration: int
    term: int
    sound: bool
    damage: str
    by: str


@router.post("/stop")
def stop(served: Served, by: Acting, run_id: RunId, asked: StopRequest) -> Done:
    """Asks the run's driver to stop at its next safe point, with a checkpoint, so that nothing is lost."""
    if find_line(served.ledger, run_id).driver != DRIVEN:
        raise ConfigurationError(f"run {run_id}: it has no driver, so there is nothing to stop")
    served.ledger.runs.ask_to_stop(run_id, said(by, asked.reason), asked.within_seconds, by)
    return _done(served=served, action="stop", by=by, run_id=run_id, detail="asked to stop")


@router.post("/checkpoint")
def checkpoint(served: Served, by: Acting, run_id: RunId, asked: ActionRequest) -> Done:
    """Asks the run's driver for a checkpoint after its current iteration; the run goes on."""
    request = checkpoints.request(served.ledger, run_id, said(by, asked.reason), by)
    detail = request.words(time.time())
    return _done(served=served, action="checkpoint", by=by, run_id=run_id, detail=detail)


@router.post("/try-now")
def try_now(served: Served, by: Acting, run_id: RunId) -> Done:
    """Has the driver of a run that waits look at once whether what it waits for is back; the same as `yatt resume --now`."""
    if not served.ledger.waits.ask(run_id, by):
        raise ConfigurationError(f"run {run_id}: it waits for nothing outside, so there is nothing to try")
    return _done(served=served, action="try-now", by=by, run_id=run_id, detail="asked to try at once")


@router.post("/resume", status_code=HTTPStatus.ACCEPTED)
def resume(served: Served, by: Acting, run_id: RunId, asked: Resume) -> Done:
    """Starts a driver, which continues after the last commit."""
    line = find_line(served.ledger, run_id)
    if line.state == "completed" and line.iteration >= line.target_iterations:
        raise ConfigurationError(
            f"run {run_id} has reached its target, iteration {line.target_iterations}: nothing is left to do"
        )
    pid = start_driver(
        drivers=served.drivers,
        ledger=served.ledger,
        home=served.home,
        run=run_id,
        by=by,
        reason=asked.reason,
        accept_drift=asked.accept_drift,
    )
    return _done(served=served, action="resume", by=by, run_id=run_id, detail=f"a driver is starting, pid {pid}")


@router.post("/retry", status_code=HTTPStatus.ACCEPTED)
def retry(served: Served, by: Acting, run_id: RunId, asked: Retry) -> Done:
    """Restores the full retry budget of a phase that failed too often, and starts a driver."""
    from flows.branching import branches

    served.drivers.require_idle(served.ledger, run_id)
    charged = branches.forgive(
        home=served.home, run=run_id, iteration=asked.iteration, phase=asked.phase, reason=said(by, asked.reason), by=by
    )
    pid = start_driver(
        drivers=served.drivers,
        ledger=served.ledger,
        home=served.home,
        run=run_id,
        by=by,
        reason=f"retry of {asked.phase}",
    )
    lost = ", ".join(f"{count} {kind}" for kind, count in charged.items())
    return _done(
        served=served, action="retry", by=by, run_id=run_id, detail=f"{lost} forgiven; a driver is starting, pid {pid}"
    )


@router.post("/rollback")
def rollback(served: Served, by: Acting, run_id: RunId, asked: Rollback) -> Done:
    """Rolls a run back to an iteration, on a new branch. The run is not resumed; that takes a separate request."""
    from flows.branching import branches

    served.drivers.require_idle(served.ledger, run_id)
    done = branches.rollback(home=served.home, run=run_id, to=asked.to, reason=said(by, asked.reason), by=by)
    superseded = many(done.superseded, "iteration", "are superseded", "is superseded")
    detail = f"branch {done.branch} begins after iteration {done.iteration}; {superseded}"
    return _done(served=served, action="rollback", by=by, run_id=run_id, detail=detail)


@router.post("/promote")
def promote(served: Served, by: Approver, run_id: RunId, asked: PromoteRequest) -> Done:
    """Verifies a kept checkpoint and points an alias at it. MLflow is updated after the response."""
    from ops.integrations.promotion import promote as promote_checkpoint

    find_line(served.ledger, run_id)
    with served.reading():
        done = promote_checkpoint(
            home=served.home,
            run=run_id,
            alias=asked.to,
            iteration=asked.iteration,
            branch=asked.branch,
            term=asked.term,
            by=by.name,
            why=asked.why,
            via="api",
            person=by,
        )
    if done.model is not None:
        tell_registry(served, run_id)
    moved = ", ".join(f"{move.alias} is now iteration {move.iteration}" for move in done.moves)
    if done.approval is not None:
        moved = f"waits for approval {done.approval}"
    return _done(
        served=served,
        action="promote",
        by=by.name,
        run_id=run_id,
        detail=moved or f"{asked.to} is already iteration {done.iteration}",
    )


@router.post("/archive")
def archive(served: Served, by: Administering, run_id: RunId, asked: ActionRequest) -> Done:
    """Deletes what a run that has ended no longer needs: older checkpoints, experience, its own Prefect database."""
    find_line(served.ledger, run_id)
    done = archive_run(home=served.home, ledger=served.ledger, run=run_id, by=by, why=asked.reason)
    checkpoints = many(len(done.checkpoints), "checkpoint")
    what = f"{checkpoints} and the experience of {many(len(done.experience), 'iteration')} deleted"
    return _done(served=served, action="archive", by=by, run_id=run_id, detail=f"{what}, {size(done.freed)} less")


@router.post("/delete")
def delete(served: Served, by: Administering, run_id: RunId, asked: Delete) -> Deleted:
    """Deletes a run: its rows, folder, objects and MLflow runs. The ledger keeps a record of it.

    One that has begun is deleted only if `begun` says so, and nothing depends on it.
    """
    from ops.integrations.mlflow_tracker import MlflowTracker

    if asked.begun and served.ledger.deletions.find(run_id) is None:
        in_order(served.home, served.ledger, [run_id], asked.promoted)
    tracker = MlflowTracker(served.home.tracking_uri, served.home.artifacts)
    return delete_run(home=served.home, run=run_id, by=by, why=asked.reason, tracker=tracker, begun=asked.begun)


@router.post("/checkpoints/{iteration}/verify")
def verify(
    served: Served,
    by: Acting,
    run_id: RunId,
    iteration: Iteration,
    branch: Number | None = None,
    term: Number | None = None,
) -> Verified:
    """Reads every byte of an iteration's kept checkpoint and compares it with the ledger.

    If several checkpoints match branch and term, the newest is read.
    """
    with served.reading():
        row, found = checkpoints.verify(
            ledger=served.ledger, home=served.home, run=run_id, iteration=iteration, by=by, branch=branch, term=term
        )
    return Verified(
        run=run_id,
        branch=row.branch,
        iteration=row.iteration,
        term=row.term,
        sound=found.sound,
        damage=found.damage,
        by=by,
    )


def said(by: str, reason: str) -> str:
    """Returns a reason as recorded in the audit chain; the name comes first, so that the reason cannot imitate it."""
    return f"{by}, through the dashboard: {reason}" if reason else f"{by}, through the dashboard"


def _done(served: Context, action: str, by: str, run_id: str, detail: str) -> Done:
    return Done(action=action, by=by, detail=detail, run=find_line(served.ledger, run_id))
