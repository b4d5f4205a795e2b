"""Handles signing in and out: with a token, or through an OpenID Connect provider.

Consumes forms of the dashboard's pages and the provider's answers; produces sessions, and redirects to the page that the
person came from.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from ops.dashboard.access import UNKNOWN_TOKEN, cookie_name, set_cookie
from ops.dashboard.pages.frame import Visited

router = APIRouter(include_in_schema=False)
Next = Annotated[str, Query(max_length=500)]


@router.get("/sign-in")
def show_sign_in(visit: Visited, next: Next = "/") -> Response:  # noqa: A002 - the name of the URL parameter
    """Shows the sign-in form."""
    return visit.render("sign_in.html", next=own_path(next), problem="")


@router.post("/sign-in")
def sign_in(
    visit: Visited,
    token: Annotated[str, Form(max_length=500)],
    next: Annotated[str, Form(max_length=500)] = "/",  # noqa: A002
) -> Response:
    """Opens a session and redirects to the page that the user came from."""
    opened = visit.served.sessions.begin(token.strip())
    if opened is None:
        return visit.render("sign_in.html", HTTPStatus.UNAUTHORIZED, next=own_path(next), problem=UNKNOWN_TOKEN)
    answer = RedirectResponse(own_path(next), HTTPStatus.SEE_OTHER)
    set_cookie(answer, visit.request, opened[0])
    return answer


@router.post("/sign-out")
def sign_out(visit: Visited) -> Response:
    """Ends the session of this browser."""
    cookie = cookie_name(visit.request)
    visit.served.sessions.end(visit.request.cookies.get(cookie, ""))
    answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(cookie, httponly=True, samesite="strict")
    return answer


def own_path(address: str) -> str:
    """Returns the address if every browser takes it for a path of the dashboard, else `/`."""
    parts = urlsplit(address)
    led_away = parts.scheme or parts.netloc or not address.startswith("/") or address[1:2] in ("/", "\\")
    return "/" if led_away or not address.isprintable() else address


def sign_in_address(request: Request) -> str:
    """Returns the address of the sign-in page, which leads back to the requested page, or to the one that it is part of."""
    asked = urlsplit(request.headers.get("hx-current-url", "") or str(request.url))
    return f"/sign-in?{urlencode({'next': own_path(asked.path + (f'?{asked.query}' if asked.query else ''))})}"
