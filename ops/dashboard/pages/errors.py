"""Errors as pages, for browsers; programs get the problem document that `ops.dashboard.problems` makes of them.

Consumes the application's handlers of errors; produces handlers that render their answers where a page was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.responses import Response

from ops.dashboard.context import context_of
from ops.dashboard.pages.acting import own_path
from ops.dashboard.pages.frame import Visit, visit
from yatt_core.errors import ConfigurationError

Handler = Callable[[Request, Exception], Response | Awaitable[Response]]
REFUSED = (401, 403)
PROGRAMS = ("/api/", "/metrics", "/static/", "/health")


def install(app: FastAPI) -> None:
    """Has the application answer browsers with pages when something goes wrong."""
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _paged(handler))


def _paged(handler: Handler) -> Handler:
    async def answer(request: Request, error: Exception) -> Response:
        made: Any = handler(request, error)
        answered: Response = await made if isinstance(made, Awaitable) else made
        return error_page(request, answered) if wants_page(request) else answered

    return answer


def wants_page(request: Request) -> bool:
    """True for a browser that asked for a page."""
    return not request.url.path.startswith(PROGRAMS) and "text/html" in request.headers.get("accept", "")


def error_page(request: Request, answered: Response) -> Response:
    """A problem document as a page."""
    told = json.loads(bytes(answered.body))
    served = context_of(request)
    try:
        looking = visit(request, served)
    except ConfigurationError:  # of the file of tokens: whoever looks is nobody then
        looking = Visit(request, served, None)
    status = answered.status_code
    page = looking.render(
        "error.html", status, title=told["title"], detail=told["detail"], refused=status in REFUSED, back=back(request)
    )
    for name in set(answered.headers) - set(page.headers):  # such as those that say how to be let in
        page.headers[name] = answered.headers[name]
    return page


def back(request: Request) -> str:
    """The page that one came from, if it is one of ours; else the run's, else the first."""
    came = urlsplit(request.headers.get("referer", ""))
    if came.netloc == request.headers.get("host") and came.path != request.url.path:
        return own_path(came.path)
    parts = request.url.path.split("/")
    return "/".join(parts[:3]) if request.method == "POST" and parts[1] == "runs" else "/"
