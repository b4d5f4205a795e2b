"""Turns every error of the API into `application/problem+json` (RFC 9457), with a message that can be shown to users.

Consumes exceptions; produces responses. Unexpected errors are logged; their text is not included in the response.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from db.core.errors import (
    AnnotationRefused,
    ApprovalForbidden,
    ApprovalNotFound,
    Fenced,
    LeaseHeld,
    LedgerError,
    LedgerUnavailable,
    PipelineNotFound,
    RunNotFound,
)
from ops.presentation.words import shortened
from ops.queries.sample_filters import InvalidQuery
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, YattError
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.dashboard")
MEDIA_TYPE = "application/problem+json"


class InvalidSpec(ConfigurationError):
    """A spec with mistakes, one per line."""


class Problem(BaseModel):
    """A problem document; very long texts are shortened in the middle.

    instance: the requested path.
    errors: the invalid parts of a request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    errors: list[dict[str, str]] = []


def problem(
    request: Request,
    status: int,
    detail: str,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Returns a response with a problem document."""
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=shortened(detail),
        instance=shortened(request.url.path),
        errors=[{name: shortened(text) for name, text in each.items()} for each in errors or ()],
    )
    return JSONResponse(body.model_dump(), status, headers=headers, media_type=MEDIA_TYPE)


def status_of(error: Exception, changing: bool) -> int:
    """Returns the HTTP status for an error.

    changing: True for a request that would change something; a `ConfigurationError` is then a conflict with the current state.
    """
    match error:
        case RunNotFound() | PipelineNotFound() | ApprovalNotFound():
            return HTTPStatus.NOT_FOUND
        case ApprovalForbidden():
            return HTTPStatus.FORBIDDEN
        case InvalidQuery() | AnnotationRefused() | InvalidSpec():
            return HTTPStatus.UNPROCESSABLE_ENTITY
        case LedgerUnavailable() | InfrastructureError():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case ConfigurationError():
            return HTTPStatus.CONFLICT if changing else HTTPStatus.NOT_FOUND
        case LeaseHeld() | Fenced() | DataError() | LedgerError():
            return HTTPStatus.CONFLICT
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def install(app: FastAPI) -> None:
    """Makes the application return every error as a problem document."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (YattError, LedgerError):
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(Exception, _unforeseen)


def _http(request: Request, error: Any) -> JSONResponse:
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework names only the methods of the first route with this path.
        headers = {**(headers or {}), "Allow": ", ".join(sorted(_methods(request)))}
    return problem(request, error.status_code, str(error.detail), headers=headers)


def _methods(request: Request) -> set[str]:
    """Returns the methods that the requested path supports."""
    routes = (route for route in iter_route_contexts(request.app.routes) if route.methods)
    return {method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()}


def _mistake(found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the place and the text of one of pydantic's errors."""
    match found["type"], found["loc"]:
        case "json_invalid", ("body", position):
            return {"where": "body", "what": f"is not JSON: {found['ctx']['error']}, character {position}"}
        case "model_attributes_type" | "dict_type", ("body",):
            return {"where": "body", "what": "expected a JSON object, sent with Content-Type: application/json"}
        case _, places:
            return {"where": ".".join(map(str, places)), "what": str(found["msg"])}


def _invalid(request: Request, error: Any) -> JSONResponse:
    # The invalid input itself is left out, since it may be a secret.
    errors = [_mistake(each) for each in error.errors()]
    detail = "; ".join(f"{each['where']}: {each['what']}" for each in errors)
    return problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors)


def _known(request: Request, error: Exception) -> JSONResponse:
    status = status_of(error, request.method not in ("GET", "HEAD"))
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s: %s", request.method, request.url.path, redact(str(error)))
    lines = redact(str(error)).splitlines() if isinstance(error, InvalidSpec) else []
    return problem(request, status, redact(str(error)), [{"where": "body.spec", "what": line} for line in lines])


def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s: %s", request.method, request.url.path, redact("".join(traceback.format_exception(error))))
    return problem(
        request, HTTPStatus.INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}; see the server's log"
    )
