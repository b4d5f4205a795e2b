"""The costs page: what runs cost, as stacked bars by cause and as a table, and the same as CSV."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import Response

from ops.costs.drawing import CAUSE_COLOURS, cost_picture
from ops.costs.view import DIMENSIONS, Costs, Dimension, cost_columns, costs, csv_of, stacks_of
from ops.web.context import Context
from ops.web.frame import Visited
from ops.web.texts import one_of

router = APIRouter(prefix="/costs", include_in_schema=False)
STACKED = tuple(name for name in DIMENSIONS if name != "cause")
By = Annotated[str, one_of(STACKED)]


@router.get("")
def show_costs(visit: Visited, by: By = "run", since: str = "") -> Response:
    """Shows what runs cost, summed by one dimension and stacked by cause."""
    day = _day(since)
    found = _costs(visit.served, by, day)
    stacked = _costs(visit.served, by, day, "cause")
    return visit.render(
        "costs.html",
        costs=found,
        pictures=[(unit, cost_picture(unit, stacks)) for unit, stacks in stacks_of(stacked).items()],
        colours=CAUSE_COLOURS,
        columns=cost_columns(found.by),
        by=by,
        since=since if day else "",
        choices=[(name, name) for name in STACKED],
        csv="/costs/costs.csv?" + urlencode({"by": by, **({"since": since} if day else {})}),
    )


@router.get("/costs.csv")
def download_costs(visit: Visited, by: By = "run", since: str = "") -> Response:
    """Returns what runs cost by one dimension and by cause, as CSV."""
    text = csv_of(_costs(visit.served, by, _day(since), "cause"))
    headers = {"Content-Disposition": f'attachment; filename="costs-by-{by}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _costs(served: Context, by: str, day: date | None, *more: Dimension) -> Costs:
    dimension: Dimension = next(name for name in DIMENSIONS if name == by)
    since = None if day is None else round(datetime.combine(day, time(), UTC).timestamp() * 1000)
    return costs(served.ledger, (dimension, *more), since)


def _day(text: str) -> date | None:
    """Returns the day of the form; None if the field is empty or is no day."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
