"""Renders errors as pages for browsers; programs get the problem documents of `ops.web.problems`.

Consumes the application's error handlers; produces handlers that render their responses as pages if a page was requested.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from ops.dashboard.pages.signing_in import own_path, sign_in_address, split_address
from ops.web.context import context_of
from ops.web.frame import Visit, visit
from ops.web.security import SAFE_METHODS
from yatt_core.errors import ConfigurationError

Handler = Callable[[Request, Exception], Response | Awaitable[Response]]
REFUSED = (401, 403)
PROGRAMS = ("/api/", "/metrics", "/static/", "/health")


def install(app: FastAPI) -> None:
    """Makes the application show errors to browsers as pages."""
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _paged(handler))


def _paged(handler: Handler) -> Handler:
    async def answer(request: Request, error: Exception) -> Response:
        made: Any = handler(request, error)
        answered: Response = await made if isinstance(made, Awaitable) else made
        if not wants_page(request):
            return answered
        return to_sign_in(request) if needs_sign_in(request, answered) else error_page(request, answered)

    return answer


def wants_page(request: Request) -> bool:
    """Returns True if a browser requested a page."""
    return not request.url.path.startswith(PROGRAMS) and "text/html" in request.headers.get("accept", "")


def needs_sign_in(request: Request, answered: Response) -> bool:
    """Returns True if a page was refused only because its visitor is not signed in."""
    return answered.status_code == HTTPStatus.UNAUTHORIZED and request.method in SAFE_METHODS


def to_sign_in(request: Request) -> Response:
    """Sends the visitor of a page to the sign-in page, and back afterwards."""
    address = sign_in_address(request)
    if "hx-request" in request.headers:  # a part of a page: the whole page has to be left
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": address})
    return RedirectResponse(address, HTTPStatus.SEE_OTHER)


def error_page(request: Request, answered: Response) -> Response:
    """Renders a problem document as a page."""
    told = json.loads(bytes(answered.body))
    served = context_of(request)
    try:
        looking = visit(request, served)
    except ConfigurationError:  # from the token file; the page is then shown without a user
        looking = Visit(request, served, None)
    status = answered.status_code
    page = looking.render(
        "error.html", status, title=told["title"], detail=told["detail"], refused=status in REFUSED, back=back(request)
    )
    for name in set(answered.headers) - set(page.headers):  # such as WWW-Authenticate
        page.headers[name] = answered.headers[name]
    return page


def back(request: Request) -> str:
    """Returns the previous page if it is one of the dashboard's, else the run's page, else `/`."""
    came = split_address(request.headers.get("referer", ""))
    if came.netloc == request.headers.get("host") and came.path != request.url.path:
        return own_path(came.path)
    parts = request.url.path.split("/")
    return "/".join(parts[:3]) if request.method == "POST" and parts[1] == "runs" else "/"
