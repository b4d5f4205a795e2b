"""The API's routes for the images that a workload's samples were: over iterations, and of one iteration."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ops.queries import images
from ops.web.context import LARGEST, Iteration, RunId, Served

router = APIRouter(prefix="/api/v1/runs/{run_id}/images", tags=["rollouts"])
First = Annotated[int, Query(ge=1, le=LARGEST, description="First iteration.")]
Last = Annotated[int | None, Query(ge=1, le=LARGEST, description="Last iteration; by default the newest.")]
Width = Annotated[int, Query(ge=2, le=images.WIDEST, description="Maximum number of iterations, evenly spread.")]


@router.get("")
def show_image_grid(
    served: Served, run_id: RunId, first: First = 1, last: Last = None, width: Width = images.WIDTH
) -> images.ImageGrid:
    """Returns the first images of each prompt over iterations, with the prompt's mean reward in each."""
    return images.image_grid(ledger=served.ledger, home=served.home, run=run_id, first=first, last=last, width=width)


@router.get("/{iteration}")
def list_images(served: Served, run_id: RunId, iteration: Iteration) -> images.IterationImages:
    """Lists the images of an iteration with caption, reward, seed and file."""
    return images.iteration_images(served.ledger, served.home, run_id, iteration)
