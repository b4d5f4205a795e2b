"""The devices page: the role and use of each device over time, and the placement decisions with their reasons."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.responses import Response

from db.ledger import Ledger
from db.write.phases import AttemptRow
from ops.dashboard.pages.charts import Display, device_charts
from ops.dashboard.pages.device_rows import KEYS as ROW_KEYS
from ops.dashboard.pages.device_rows import device_rows
from ops.dashboard.pages.pictures import device_picture, phase_bars
from ops.presentation.placement_gantt import KEYS
from ops.queries.devices import DEVICE_TIMES, device_use
from ops.queries.placement import CHANGES, ROLES, SEATS, SEEN, decision_columns, decisions, placement
from ops.web.context import Before, Number, RunId
from ops.web.formats import run_url
from ops.web.frame import Visited
from yatt_core.errors import ConfigurationError

router = APIRouter(prefix="/runs/{run_id}", include_in_schema=False)
PER_PAGE = 30


@router.get("/devices")
def show_devices(visit: Visited, run_id: RunId, iteration: Number | None = None, before: Before = None) -> Response:
    """Shows an iteration's placement, by default the newest, and a list of decisions."""
    served = visit.served
    run = visit.find(run_id)
    newest = decisions(served.ledger, run_id, 1).decisions
    last = newest[0].iteration if newest else max(0, run.iteration)
    wanted = last if iteration is None else iteration
    use = device_use(served.ledger, run_id, wanted)
    try:
        view = placement(served.ledger, served.home, run_id, wanted)
        found = view.explanation
        gantt = view.gantt
        missing = view.gantt_missing
    except ConfigurationError as error:
        found = None
        gantt = None
        missing = str(error)
    return visit.render_run(
        "devices.html",
        run,
        "devices",
        found=found,
        missing=missing,
        gantt=device_picture(gantt) if gantt else None,
        phases=phase_bars(attempts_of(served.ledger, run_id, wanted), int(time.time() * 1000)),
        legend=KEYS,
        wanted=wanted,
        use=use,
        rows=device_rows(use, visit.has_sft(run_id)) if use.devices else None,
        row_legend=ROW_KEYS,
        charts=device_charts(run_id, use.metrics),
        display=Display(),
        newest=last,
        decisions=decisions(served.ledger, run_id, PER_PAGE, before),
        before=before,
        device_columns=DEVICE_TIMES,
        seat_columns=SEATS,
        role_columns=ROLES,
        change_columns=CHANGES,
        seen_columns=SEEN,
        decision_columns=decision_columns(lambda number: run_url(run_id, "devices", iteration=number, before=before)),
    )


def attempts_of(ledger: Ledger, run: str, iteration: int) -> list[AttemptRow]:
    """Returns the attempts at an iteration's phases.

    The attempts at an inherited iteration are recorded under the run and branch that made the iteration.
    """
    owner, branch, _ = ledger.commits.maker(run, iteration)
    return ledger.phases.attempts(owner, branch, iteration)
