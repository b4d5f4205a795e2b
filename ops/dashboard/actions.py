"""What changes a run over HTTP: stop, resume, retry, roll back, promote, verify. Each needs a named token.

Consumes requests of `ops.dashboard.access.acting`; works through the same functions as the command line. The name stands in the
audit chain: in the link of the fact itself, within its reason, or in a link of its own.
"""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ops.dashboard.access import Acting
from ops.dashboard.context import Context, Iteration, Number, RunId, Served
from ops.dashboard.driving import start_driver
from ops.dashboard.texts import GivenReason, PhaseName, Reason
from ops.queries import checkpoints
from ops.queries.run_list import DRIVEN, ListedRun, find_line
from yatt_core.errors import ConfigurationError
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.dashboard")
router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["actions"])


class Asked(BaseModel):
    """What is asked for, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Reason = ""


class Stop(Asked):
    """within_seconds: end by then, if need be in the middle of an iteration; none: behind the current one."""

    within_seconds: Annotated[float, Field(ge=0, le=7 * 86400, allow_inf_nan=False)] | None = None


class Resume(Asked):
    """accept_drift: replay updates even in another environment than they were made in."""

    accept_drift: bool = False


class Retry(Asked):
    """The iteration that is to be committed next, and the phase that is to have its budget again."""

    iteration: Number
    phase: PhaseName


class Rollback(Asked):
    """to: the last iteration that stays in force."""

    to: Number


class Promote(BaseModel):
    """to: the alias. iteration, branch, term: of a kept checkpoint, the newest of those that they leave.

    why: kept in the audit chain, shown in MLflow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: Literal["candidate", "champion", "rollback"]
    iteration: Number | None = None
    branch: Number | None = None
    term: Number | None = None
    why: GivenReason


class Done(BaseModel):
    """What was done, for whom, and how the run stands now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str
    by: str
    detail: str
    run: ListedRun


class Verified(BaseModel):
    """What a verification found; it stands in the audit chain too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    branch: int
    iteration: int
    term: int
    sound: bool
    damage: str
    by: str


@router.post("/stop")
def stop(served: Served, by: Acting, run_id: RunId, asked: Stop) -> Done:
    """Asks the run's driver to end at its next safe point; nothing is lost, a checkpoint is left."""
    if find_line(served.ledger, run_id).driver != DRIVEN:
        raise ConfigurationError(f"run {run_id}: nobody drives it, so there is nothing to stop")
    served.ledger.runs.ask_to_stop(run_id, said(by, asked.reason), asked.within_seconds)
    return _done(served, "stop", by, run_id, "asked to stop")


@router.post("/resume", status_code=HTTPStatus.ACCEPTED)
def resume(served: Served, by: Acting, run_id: RunId, asked: Resume) -> Done:
    """Starts a driver, which goes on behind the last commit."""
    pid = start_driver(served.drivers, served.ledger, served.home, run_id, by, asked.reason, asked.accept_drift)
    return _done(served, "resume", by, run_id, f"a driver is starting, pid {pid}")


@router.post("/retry", status_code=HTTPStatus.ACCEPTED)
def retry(served: Served, by: Acting, run_id: RunId, asked: Retry) -> Done:
    """Gives a phase that failed too often its whole budget again, and starts a driver."""
    from flows.branching import branches

    served.drivers.require_idle(served.ledger, run_id)
    charged = branches.forgive(served.home, run_id, asked.iteration, asked.phase, said(by, asked.reason))
    pid = start_driver(served.drivers, served.ledger, served.home, run_id, by, f"retry of {asked.phase}")
    lost = ", ".join(f"{count} {kind}" for kind, count in charged.items())
    return _done(served, "retry", by, run_id, f"{lost} forgiven; a driver is starting, pid {pid}")


@router.post("/rollback")
def rollback(served: Served, by: Acting, run_id: RunId, asked: Rollback) -> Done:
    """Goes back to an iteration: what follows goes on a new branch. Resuming it is another request."""
    from flows.branching import branches

    served.drivers.require_idle(served.ledger, run_id)
    done = branches.rollback(served.home, run_id, asked.to, said(by, asked.reason))
    detail = (
        f"branch {done.branch} begins behind iteration {done.iteration}; {done.superseded} iterations are superseded"
    )
    return _done(served, "rollback", by, run_id, detail)


@router.post("/promote")
def promote(served: Served, by: Acting, run_id: RunId, asked: Promote) -> Done:
    """Has an alias point to a kept checkpoint, once its files are verified. MLflow is told behind the answer."""
    from ops.integrations.promotion import promote as promote_checkpoint

    find_line(served.ledger, run_id)
    with served.reading():
        done = promote_checkpoint(
            served.home, run_id, asked.to, asked.iteration, asked.branch, asked.term, by=by, why=asked.why
        )
    if done.model is not None:
        # Not one of the routes' threads, since MLflow may be long in answering.
        threading.Thread(target=_tell_registry, args=(served, run_id), daemon=True, name=f"promote-{run_id}").start()
    moved = ", ".join(f"{move.alias} is now iteration {move.iteration}" for move in done.moves)
    return _done(served, "promote", by, run_id, moved or f"{asked.to} is iteration {done.iteration} already")


@router.post("/checkpoints/{iteration}/verify")
def verify(
    served: Served,
    by: Acting,
    run_id: RunId,
    iteration: Iteration,
    branch: Number | None = None,
    term: Number | None = None,
) -> Verified:
    """Reads every byte of an iteration's kept checkpoint, and compares it with the ledger; the newest of those not ruled out."""
    with served.reading():
        row, found = checkpoints.verify(served.ledger, served.home, run_id, iteration, by, branch, term)
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
    """A reason as the audit chain has it; the name comes first, where no reason can take its place."""
    return f"{by}, through the dashboard: {reason}" if reason else f"{by}, through the dashboard"


def _tell_registry(served: Context, run_id: str) -> None:
    from ops.integrations.promotion import deliver

    waits = deliver(served.home, run_id)
    if waits is not None:
        log.warning("run %s: MLflow will be told of the promotion later: %s", run_id, redact(waits))


def _done(served: Context, action: str, by: str, run_id: str, detail: str) -> Done:
    return Done(action=action, by=by, detail=detail, run=find_line(served.ledger, run_id))
