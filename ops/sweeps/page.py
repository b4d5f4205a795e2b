"""The pages about sweeps: the list, and one sweep with its trials as parallel coordinates and as a table."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from flows.sweeps.record import SWEEP
from ops.sweeps.axes import coordinates_of
from ops.sweeps.drawing import coordinates_picture
from ops.sweeps.view import SWEEPS, sweep_list, sweep_view, trial_columns
from ops.sweeps.words import value_text
from ops.web.context import RunId
from ops.web.frame import Visited, record_behind

router = APIRouter(prefix="/sweeps", include_in_schema=False)


@router.get("")
def show_sweeps(visit: Visited) -> Response:
    """Shows the sweeps among the newest runs."""
    found = sweep_list(visit.served.ledger)
    return visit.render_list("Sweeps", SWEEPS, found, "None. `yatt sweep SPEC` starts one.")


@router.get("/{run_id}")
def show_sweep(visit: Visited, run_id: RunId) -> Response:
    """Shows the sweep to which a run belongs."""
    view = sweep_view(visit.served.ledger, record_behind(visit, SWEEP, run_id))
    found = coordinates_of(view)
    return visit.render(
        "sweep.html",
        sweep=view,
        picture=None if found is None else coordinates_picture(found),
        columns=trial_columns(view),
        value_text=value_text,
    )
