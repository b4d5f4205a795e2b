"""Adds the pages to the application: their routes, the static files and the error pages."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ops.approvals import page as approvals
from ops.costs import page as costs
from ops.dashboard.pages import acting, deployments, devices, errors, images, rollouts, run, run_list, signing_in
from ops.pipelines import page as pipelines
from ops.queueing import page as queueing
from ops.soups import page as soups
from ops.sweeps import page as sweeps
from ops.web.access import READING
from ops.web.templating import STATIC, STATIC_PATH

FOR_GOOD = "public, max-age=31536000, immutable"


class DigestedFiles(StaticFiles):
    """Serves static files; browsers may cache a file indefinitely if its address contains its digest."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns the file or an error response, with the cache header for addresses with a digest."""
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and b"v=" in scope["query_string"]:
            answer.headers["Cache-Control"] = FOR_GOOD
        return answer


def install(app: FastAPI) -> None:
    """Adds the pages; must be called after all other error handlers have been added."""
    modules: tuple[Any, ...] = (
        *(
            run_list,
            soups,
            sweeps,
            pipelines,
            deployments,
            queueing,
            approvals,
            costs,
            run,
            devices,
            rollouts,
            images,
            acting,
        ),
    )
    for module in modules:
        app.include_router(module.router, dependencies=READING)
    for free in (signing_in.router, approvals.links):
        app.include_router(free)
    app.mount(STATIC_PATH, DigestedFiles(directory=STATIC), name="static")
    errors.install(app)
