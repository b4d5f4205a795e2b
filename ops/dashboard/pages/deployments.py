"""The page of the deployments: which runs are driven in windows, when, and when the next windows begin.

Consumes the read model of `ops.queries.deployments`; produces HTML.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ops.dashboard.pages.frame import Visited
from ops.queries.deployments import deployments

router = APIRouter(prefix="/deployments", include_in_schema=False)


@router.get("")
def show_deployments(visit: Visited) -> Response:
    """Shows the deployments."""
    return visit.render("deployments.html", found=deployments(visit.served.home, visit.served.prefect()))
