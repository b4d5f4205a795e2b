"""API routes of the queue: reading needs no token; changes need a named one, whose name the audit chain records.

Consumes the ledger and the pools file, and calls the same functions as `yatt queue`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from flows.queueing.pools import NAME
from flows.queueing.pools_file import read_pools
from flows.run.creation import current_spec
from ops.queries.run_list import find_line
from ops.queueing.submitting import DEFAULT_PROJECT, HIGHEST, SubmissionOptions, submit
from ops.queueing.view import QueueView, queue_view
from ops.web.access import Acting
from ops.web.bodies import Body, Flag
from ops.web.context import RunId, Served
from ops.web.texts import Like
from yatt_core.errors import ConfigurationError

router = APIRouter(prefix="/api/v1/queue", tags=["queue"])
Name = Annotated[str, Like(NAME, "up to 40 lower-case letters, digits and '-'")]
Priority = Annotated[int, Field(strict=True, ge=-HIGHEST, le=HIGHEST)]
DeviceNumber = Annotated[int, Field(strict=True)]
WANTED = {"pause": "hold", "resume": "run", "remove": "remove"}


class Submit(Body):
    """A request to put an existing run into the queue.

    pools: the preferred one first; may be empty if there is only one.
    devices: those that its spec needs by default.
    """

    pools: Annotated[tuple[Name, ...], Field(max_length=10)] = ()
    project: Name = DEFAULT_PROJECT
    priority: Priority = 0
    devices: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    auto_checkpoints: Flag = False


class QueueChange(Body):
    """A request to change a run's place in the queue; None leaves it as it is."""

    action: Literal["pause", "resume", "remove"] | None = None
    priority: Priority | None = None


class Devices(Body):
    """A report of devices that go away or come back.

    within_seconds: the notice; 0: they are gone already.
    """

    lost: Annotated[tuple[DeviceNumber, ...], Field(max_length=10_000)] = ()
    back: Annotated[tuple[DeviceNumber, ...], Field(max_length=10_000)] = ()
    within_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400, allow_inf_nan=False)] = 0.0


@router.get("")
def show(served: Served) -> QueueView:
    """Returns pools, and the runs that hold devices, wait for them, or ended last."""
    return queue_view(served.ledger, served.home)


@router.post("/runs/{run_id}")
def submit_run(served: Served, by: Acting, run_id: RunId, asked: Submit) -> QueueView:
    """Puts an existing run into the queue."""
    run = find_line(served.ledger, run_id).id
    wishes = SubmissionOptions(
        pools=asked.pools,
        project=asked.project,
        priority=asked.priority,
        devices=asked.devices,
        auto_checkpoints=asked.auto_checkpoints,
    )
    submit(home=served.home, ledger=served.ledger, run=run, spec=current_spec(served.ledger, run), asked=wishes, by=by)
    return queue_view(served.ledger, served.home)


@router.patch("/runs/{run_id}")
def change_run(served: Served, by: Acting, run_id: RunId, asked: QueueChange) -> QueueView:
    """Holds a run back, lets it go on, removes it, or changes its priority."""
    wanted = None if asked.action is None else WANTED[asked.action]
    served.ledger.submissions.change(find_line(served.ledger, run_id).id, by, wanted=wanted, priority=asked.priority)
    return queue_view(served.ledger, served.home)


@router.post("/pools/{pool}/devices")
def report_devices(served: Served, by: Acting, pool: Name, asked: Devices) -> QueueView:
    """Reports devices that go away or come back."""
    known = read_pools(served.home).pool(pool).numbers
    unknown = sorted({*asked.lost, *asked.back}.difference(known))
    if unknown:
        raise ConfigurationError(f"pool {pool} has no devices {unknown}; expected some of {list(known)}")
    served.ledger.submissions.report_outage(pool, asked.lost, asked.within_seconds, by)
    served.ledger.submissions.end_outage(pool, asked.back)
    return queue_view(served.ledger, served.home)
