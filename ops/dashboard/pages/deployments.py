"""The page of the deployments: which runs are driven in windows, when, and when the next windows begin.

Consumes the read model of `ops.queries.deployments`; produces HTML.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ops.queries.deployments import DEPLOYMENTS, deployments
from ops.web.frame import Visited

router = APIRouter(prefix="/deployments", include_in_schema=False)


@router.get("")
def show_deployments(visit: Visited) -> Response:
    """Shows the deployments."""
    found = deployments(visit.served.home, visit.served.prefect())
    empty = "None. `yatt deploy SPEC` makes one."
    return visit.render_list("Deployments", DEPLOYMENTS, found.deployments, empty, trouble=found.trouble)
