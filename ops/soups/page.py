"""The pages about soups: the list, and one soup with its front, its models and its runs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from flows.soups.record import SOUP
from ops.soups.drawing import front_picture
from ops.soups.fronts import panels_of
from ops.soups.view import MEMBERS, MERGED, SOUPS, model_columns, soup_list, soup_view
from ops.soups.words import SOUP_NAMES
from ops.web.context import RunId
from ops.web.frame import Visited, record_behind

router = APIRouter(prefix="/soups", include_in_schema=False)


@router.get("")
def show_soups(visit: Visited) -> Response:
    """Shows the soups among the newest runs."""
    found = soup_list(visit.served.ledger)
    return visit.render_list("Soups", SOUPS, found, "None. `yatt soup run SPEC` starts one.")


@router.get("/{run_id}")
def show_soup(visit: Visited, run_id: RunId) -> Response:
    """Shows the soup to which a run belongs."""
    view = soup_view(visit.served.ledger, record_behind(visit, SOUP, run_id))
    return visit.render(
        "soup.html",
        soup=view,
        pictures=[(panel, front_picture(panel)) for panel in panels_of(view)],
        names=SOUP_NAMES,
        models=model_columns(view),
        members=MEMBERS,
        merged=MERGED,
    )
