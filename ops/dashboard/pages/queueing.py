"""The page of the queue: pools, and the runs that hold devices, wait for them, or ended last.

Consumes the read model of `ops.queries.queueing`; produces HTML.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ops.dashboard.pages.frame import Visited
from ops.presentation.queue_words import cost_text, pool_text, when_text
from ops.queries.queueing import queue_view

router = APIRouter(prefix="/queue", include_in_schema=False)


@router.get("")
def show_queue(visit: Visited) -> Response:
    """Shows the queue."""
    return visit.render(
        "queue.html",
        queue=queue_view(visit.served.ledger, visit.served.home),
        cost=cost_text,
        price=pool_text,
        when=when_text,
    )
