"""Handles signing in and out: with a token, or through an OpenID Connect provider.

Consumes forms of the dashboard's pages and the provider's answers; produces sessions, and redirects to the page that the
person came from.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from urllib.parse import SplitResult, urlencode, urlsplit

from fastapi import APIRouter, Form, HTTPException, Query, Request
from starlette.responses import RedirectResponse, Response

from ops.people.openid import LIFETIME_SECONDS, OpenIdProvider, SignInRefused
from ops.web.access import UNKNOWN_TOKEN, cookie_name, set_cookie
from ops.web.frame import Visit, Visited

router = APIRouter(include_in_schema=False)
CALLBACK = "/sign-in/callback"
Next = Annotated[str, Query(max_length=500)]


@router.get("/sign-in")
def show_sign_in(visit: Visited, next: Next = "/") -> Response:  # noqa: A002 - the name of the URL parameter
    """Shows the sign-in form."""
    return _form(visit, own_path(next))


def _form(visit: Visit, following: str, status: int = HTTPStatus.OK, problem: str = "") -> Response:
    served = visit.served
    return visit.render(
        "sign_in.html",
        status,
        next=following,
        problem=problem,
        provider=served.provider and served.provider.title,
        reading_needs_sign_in=served.reading_needs_sign_in,
    )


@router.post("/sign-in")
def sign_in(
    visit: Visited,
    token: Annotated[str, Form(max_length=500)],
    next: Annotated[str, Form(max_length=500)] = "/",  # noqa: A002
) -> Response:
    """Opens a session and redirects to the page that the user came from."""
    opened = visit.served.sessions.begin(token.strip())
    if opened is None:
        return _form(visit, own_path(next), HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN)
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


@router.get("/sign-in/provider")
def begin_sign_in(visit: Visited, next: Next = "/") -> Response:  # noqa: A002 - the name of the URL parameter
    """Sends the browser to the provider's sign-in page."""
    request = visit.request
    try:
        begun = _provider(visit).begin(_callback(request), own_path(next))
    except SignInRefused as error:
        return _form(visit, own_path(next), HTTPStatus.FORBIDDEN, str(error))
    answer = RedirectResponse(begun.address, HTTPStatus.SEE_OTHER)
    # Lax: the provider's answer is a navigation from another site, with which browsers do not send strict cookies.
    secure = request.url.scheme == "https"
    answer.set_cookie(
        _pending_cookie(request), begun.browser, max_age=int(LIFETIME_SECONDS), path=CALLBACK, httponly=True, samesite="lax",
        secure=secure,
    )  # fmt: skip
    return answer


@router.get(CALLBACK)
def finish_sign_in(visit: Visited) -> Response:
    """Opens a session for the person whom the provider has identified."""
    request = visit.request
    try:
        answer = dict(request.query_params)
        person, following = _provider(visit).finish(answer, request.cookies.get(_pending_cookie(request), ""))
    except SignInRefused as error:
        return _form(visit, "/", HTTPStatus.FORBIDDEN, str(error))
    # A page instead of a redirect, which browsers would follow without the new cookie, since it comes from another site.
    shown = visit.render("signed_in.html", following=following, name=person.name)
    set_cookie(shown, request, visit.served.sessions.begin_for(person))
    shown.delete_cookie(_pending_cookie(request), path=CALLBACK, httponly=True, samesite="lax")
    return shown


def _provider(visit: Visit) -> OpenIdProvider:
    """Returns the provider. Raises `HTTPException` 404 if the settings have none."""
    provider = visit.served.provider
    if provider is None:
        raise HTTPException(
            HTTPStatus.NOT_FOUND, "no sign-in provider is configured; see sign-in.yaml in docs/people.md"
        )
    return provider


def _callback(request: Request) -> str:
    """Returns the address to which the provider sends its answer, on the host that the browser uses."""
    return f"{request.url.scheme}://{request.headers['host']}{CALLBACK}"


def _pending_cookie(request: Request) -> str:
    return f"{cookie_name(request)}_begun"


def split_address(address: str) -> SplitResult:
    """Returns the parts of an address; those of `/` if it is none."""
    try:
        return urlsplit(address)
    except ValueError:  # such as an open bracket in place of the host
        return urlsplit("/")


def own_path(address: str) -> str:
    """Returns the address if every browser takes it for a path of the dashboard, else `/`."""
    parts = split_address(address)
    led_away = parts.scheme or parts.netloc or not address.startswith("/") or address[1:2] in ("/", "\\")
    return "/" if led_away or not address.isprintable() else address


def sign_in_address(request: Request) -> str:
    """Returns the address of the sign-in page, which leads back to the requested page, or to the one that it is part of."""
    asked = split_address(request.headers.get("hx-current-url", "") or str(request.url))
    return f"/sign-in?{urlencode({'next': own_path(asked.path + (f'?{asked.query}' if asked.query else ''))})}"
