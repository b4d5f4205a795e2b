"""The page of the queue: pools, and the runs that hold devices, wait for them, or ended last.

Consumes the read model of `ops.queueing.view`; produces HTML.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ops.queueing.view import ENTRIES, POOLS, queue_view
from ops.web.frame import Visited

router = APIRouter(prefix="/queue", include_in_schema=False)


@router.get("")
def show_queue(visit: Visited) -> Response:
    """Shows the queue."""
    view = queue_view(visit.served.ledger, visit.served.home)
    return visit.render("queue.html", queue=view, pools=POOLS, entries=ENTRIES)
