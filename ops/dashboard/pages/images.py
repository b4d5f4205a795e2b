"""The image files of a run's samples, for the rollouts page: PNG alone, verified against the ledger."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from ops.queries.images import image_folder
from ops.web.context import Iteration, RunId
from ops.web.formats import run_url
from ops.web.frame import Visited
from ops.web.texts import Like

router = APIRouter(prefix="/runs/{run_id}/images", include_in_schema=False)
KEPT = "private, max-age=86400, immutable"
"""A browser may keep what an address with a digest has returned, but nobody between may."""
Address = Annotated[Annotated[str, Like(r"^[0-9a-f]{64}$", "64 hexadecimal digits")], Path()]


def image_url(run: str, iteration: int, address: str) -> str:
    """Returns the address of an image's file."""
    return run_url(run, f"images/{iteration}/{address}.png")


@router.get("/{iteration}/{address}.png")
def show_image(visit: Visited, run_id: RunId, iteration: Iteration, address: Address) -> Response:
    """Returns an image's file."""
    data = image_folder(visit.served.ledger, visit.served.home, run_id, iteration).read(address)
    return Response(data, media_type="image/png", headers={"Cache-Control": KEPT})
