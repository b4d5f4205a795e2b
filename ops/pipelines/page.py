"""The pages about pipelines: the list, and one pipeline with its graph and its jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from ops.pipelines.drawing import graph_picture
from ops.pipelines.view import JOBS, PIPELINES, pipeline_list, pipeline_view
from ops.web.frame import Visited

router = APIRouter(prefix="/pipelines", include_in_schema=False)
PipelineId = Annotated[str, Path(min_length=1, max_length=80, pattern=r"^[a-z0-9-]+$")]


@router.get("")
def show_pipelines(visit: Visited) -> Response:
    """Shows the newest runs of pipelines."""
    found = pipeline_list(visit.served.ledger)
    return visit.render_list("Pipelines", PIPELINES, found, "None. `yatt pipeline run FILE` starts one.")


@router.get("/{pipeline}")
def show_pipeline(visit: Visited, pipeline: PipelineId) -> Response:
    """Shows a run of a pipeline."""
    view = pipeline_view(visit.served.ledger, pipeline)
    return visit.render("pipeline.html", pipeline=view, picture=graph_picture(view), jobs=JOBS)
