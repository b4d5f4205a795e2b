"""The dashboard as an ASGI application: `uvicorn --factory ops.dashboard.app:create_app`.

Consumes the home folder (ledger, run folders, tokens). Produces pages, the JSON API with its OpenAPI document, live updates,
`/metrics` for Prometheus and `/health`. Reading needs no sign-in unless it is required; changes need a role.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

from db.ledger import Ledger
from flows.prefect_io.prefect_server import SharedServer, named_server
from flows.prefect_io.secret_blocks import read_block
from flows.run.home import Home
from flows.run.pages import Pages
from ops.approvals import api as approving
from ops.dashboard import actions, annotating, api, changing, images_api, live, metrics, rollouts_api, starting
from ops.dashboard.pages import routes as pages
from ops.people.openid import OpenIdProvider
from ops.people.sign_in_settings import is_sign_in_required, read_settings
from ops.people.tokens import TokenStore
from ops.queueing import api as queueing_api
from ops.web import access, problems
from ops.web.context import Context, OpenStreams
from ops.web.security import SecurityMiddleware
from ops.web.sessions import Sessions

_ALWAYS = ("401", "403", "413", "421", "500", "503")
"""Statuses of errors of every route: even reading may need a person, and some of it a role."""
_WITH_INPUT = ("404", "409", "422")
_CHANGING = ("409",)
_WITH_BODY = ("400",)
"""Statuses of errors of routes with parameters or a body, of those that change something, and with a body."""
THREADS = 12
"""Worker threads for the routes; each needs one of the ledger's fifteen connections."""
OPENAPI_PATH = "/api/v1/openapi.json"


class Guarded(FastAPI):
    """An application whose every response passes the guard, including responses to unexpected errors."""

    def build_middleware_stack(self) -> ASGIApp:
        """Returns FastAPI's own middleware stack, wrapped in the guard."""
        return SecurityMiddleware(super().build_middleware_stack())


def create_app(
    home: Home | None = None,
    pages_of: Callable[[], Pages] = Pages,
    require_sign_in: bool = False,
    prefect: Callable[[], SharedServer | None] = named_server,
) -> FastAPI:
    """Creates the application for a home folder, by default the one named by the environment.

    pages_of: returns the servers whose pages show runs, for links.
    prefect: returns the Prefect server that has the deployments, by default the one that the environment names.
    require_sign_in: whether even reading needs sign-in; the settings or the environment may require it as well.

    Creates the folder and an empty ledger if they do not exist. Raises `LedgerUnavailable`, `LedgerVersionError`, and
    `ConfigurationError` for mistakes in the settings of sign-in.
    """
    place = home or Home.locate()
    settings = read_settings(place.folder)
    required = require_sign_in or settings.required or is_sign_in_required(os.environ)
    provider = None if settings.provider is None else OpenIdProvider(settings.provider, read_block)
    place.folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.open(place.ledger)
    tokens = TokenStore(place.folder)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        yield
        ledger.close()

    # FastAPI's own documentation pages are disabled because they load scripts from other hosts.
    app = Guarded(
        title="YATT",
        version=version("yatt"),
        docs_url=None,
        redoc_url=None,
        openapi_url=OPENAPI_PATH,
        lifespan=lifespan,
    )
    app.state.context = Context(
        home=place,
        ledger=ledger,
        tokens=tokens,
        sessions=Sessions(tokens),
        streams=OpenStreams(),
        pages=pages_of,
        reading_needs_sign_in=required,
        provider=provider,
        prefect=prefect,
    )
    problems.install(app)
    app.include_router(access.router)
    for part in (
        api,
        rollouts_api,
        images_api,
        queueing_api,
        actions,
        annotating,
        approving,
        starting,
        changing,
        live,
        metrics,
    ):
        app.include_router(part.router, dependencies=access.READING)
    app.get("/health", tags=["service"])(health)
    pages.install(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def health() -> dict[str, str]:
    """Reports that the server is up, even while its worker threads are busy."""
    return {"status": "ok"}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document, in which every error response is a problem document."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas["Problem"] = problems.Problem.model_json_schema()
        content = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for operations in document["paths"].values():
            for method, operation in operations.items():
                answers = operation["responses"]
                answers.pop("422", None)
                for status in _statuses(method, operation):
                    answers[status] = {"description": HTTPStatus(int(status)).phrase, "content": content}
        app.openapi_schema = document
    return app.openapi_schema


def _statuses(method: str, operation: dict[str, Any]) -> list[str]:
    """Returns the statuses of the errors with which an operation may be answered."""
    body = "requestBody" in operation
    found = {*_ALWAYS, *(_WITH_BODY if body else ()), *(() if method == "get" else _CHANGING)}
    return sorted(found | set(_WITH_INPUT if body or "parameters" in operation else ()))
