"""The pages about several runs: the list of all runs, and the comparison."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from db.core.errors import RunNotFound
from db.write.runs import STATES
from ops.dashboard.api import Tags
from ops.dashboard.pages.charts import Display, compared_charts
from ops.queries.compare import MOST_RUNS, compare, difference_columns, digest_columns, side_by_side, value_columns
from ops.queries.run_list import RUNS, run_list
from ops.queries.series import series_keys
from ops.web.context import Offset, SearchText
from ops.web.frame import Visited
from ops.web.texts import Like, Text

router = APIRouter(include_in_schema=False)
PER_PAGE = 50
StateOrNone = Annotated[str, Like(f"^({'|'.join(STATES)})?$", f"one of {', '.join(STATES)}, or nothing")]
SUGGESTED = 200
"""Number of run names that the browser suggests for completion."""


@router.get("/")
def show_run_list(
    visit: Visited,
    text: SearchText = "",
    state: StateOrNone = "",
    tag: Tags = None,
    offset: Offset = 0,
) -> Response:
    """Shows the list of runs."""
    tags = tuple(dict.fromkeys(name for name in tag or () if name))
    found = run_list(
        ledger=visit.served.ledger, text=text, state=state or None, limit=PER_PAGE, offset=offset, tags=tags
    )

    def address(**changes: object) -> str:
        asked = {"text": text, "state": state, "tag": tags, "offset": 0} | changes
        return "/?" + urlencode({name: value for name, value in asked.items() if value}, doseq=True)

    return visit.render(
        "run_list.html",
        run_list=found,
        columns=RUNS,
        text=text,
        state=state,
        tags=tags,
        most=MOST_RUNS,
        done=visit.done,
        tag_address=lambda name: address(tag=tuple(dict.fromkeys((*tags, name)))),
        untagged_address=lambda name: address(tag=tuple(other for other in tags if other != name)),
        states=[("", f"all ({sum(found.states.values())})"), *((n, f"{n} ({found.states.get(n, 0)})") for n in STATES)],
        earlier=address(offset=max(0, offset - PER_PAGE)) if offset else None,
        later=address(offset=offset + PER_PAGE) if offset + len(found.runs) < found.total else None,
    )


@router.get("/compare")
def show_comparison(
    visit: Visited,
    shown: Annotated[Display, Depends(Display)],
    run: Annotated[list[Text] | None, Query(max_length=PER_PAGE)] = None,
) -> Response:
    """Shows several runs side by side, or fields for their names if none are given."""
    ledger = visit.served.ledger
    given = list(dict.fromkeys(name for name in run or () if name))
    named = given[:MOST_RUNS]
    known = [line.id for line in run_list(ledger, limit=SUGGESTED).runs]
    found = None
    problem = ""
    charts = []
    if named:
        try:
            found = compare(ledger, named)
            keys = {each.key for name in named for each in series_keys(ledger, name)}
            charts = compared_charts(named, keys)
        except RunNotFound as error:
            problem = str(error)
    asked = [*named, ""] if len(named) < MOST_RUNS else named
    return visit.render(
        "compare.html",
        404 if problem else 200,
        left_out=len(given) - len(named),
        asked=asked if len(asked) > 1 else ["", ""],
        known=known,
        found=found,
        side_by_side=side_by_side,
        difference_columns=difference_columns,
        digest_columns=digest_columns,
        value_columns=value_columns,
        problem=problem,
        charts=charts,
        display=shown,
    )
