"""Adds the pages to the application: their routes, the static files, and errors that browsers can read."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ops.dashboard.pages import acting, devices, errors, rollouts, run, run_list
from ops.dashboard.pages.templating import STATIC, STATIC_PATH

FOR_GOOD = "public, max-age=31536000, immutable"


class DigestedFiles(StaticFiles):
    """Static files. One whose address carries its digest may be kept for good."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or what says that there is none."""
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and b"v=" in scope["query_string"]:
            answer.headers["Cache-Control"] = FOR_GOOD
        return answer


def install(app: FastAPI) -> None:
    """Adds the pages; behind everything else that the application has handlers for."""
    modules: tuple[Any, ...] = (run_list, run, devices, rollouts, acting)
    for module in modules:
        app.include_router(module.router)
    app.mount(STATIC_PATH, DigestedFiles(directory=STATIC), name="static")
    errors.install(app)
