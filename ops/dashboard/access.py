"""Authenticates requests by a named token: sent as `Authorization: Bearer`, or exchanged for a session cookie.

A cookie counts only if the browser confirms that one of the dashboard's own pages sent the request, since browsers attach
cookies to requests from any site.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from ops.dashboard.context import Context, Served
from ops.dashboard.security import is_proven_own
from ops.dashboard.sessions import SECONDS

router = APIRouter(prefix="/api/v1", tags=["access"])
_bearer = HTTPBearer(auto_error=False, description="A token created with `yatt token create NAME`.")
NEEDS_TOKEN = (
    "this needs a token: create one with `yatt token create NAME` and send it as `Authorization: Bearer TOKEN`"
)
UNKNOWN_TOKEN = "this token is unknown or was revoked; `yatt token list` shows the valid names"
SESSION_OVER = "this session has ended; sign in again"


def cookie_name(request: Request) -> str:
    """Returns the session cookie's name; it contains the port, since browsers share cookies among a host's ports."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"yatt_session_{port}"


class _SessionCookie(APIKeyCookie):
    """Reads the session cookie of the request's port."""

    async def __call__(self, request: Request) -> str | None:
        """Returns the cookie's value; None if the browser sent no cookie."""
        return request.cookies.get(cookie_name(request))


_cookie = _SessionCookie(name="yatt_session_PORT", description="A session opened with POST /api/v1/session.")


class SignIn(BaseModel):
    """A token with which to open a session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: SecretStr = Field(min_length=1, max_length=200)


class Visitor(BaseModel):
    """The signed-in user; no name for visitors who may only read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None


def session_name(served: Context, request: Request) -> str | None:
    """Returns the user of the request's session; for display only, not for authorization."""
    value = request.cookies.get(cookie_name(request))
    return None if value is None else served.sessions.name_of(value)


def acting(
    request: Request,
    served: Served,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> str:
    """Returns the name of the authorized user.

    Raises `HTTPException` 401 without a valid token or session, 403 for a cookie on a request from another site.
    """
    if bearer is not None:
        name, lacking = served.tokens.name_of(bearer.credentials), UNKNOWN_TOKEN
    elif cookie is None:
        name, lacking = None, NEEDS_TOKEN
    elif is_proven_own(request.headers, request.url.scheme):
        name, lacking = served.sessions.name_of(cookie), SESSION_OVER
    else:
        raise HTTPException(HTTPStatus.FORBIDDEN, "a session is valid only for requests from the dashboard's own pages")
    if name is None:
        raise _unauthorized(lacking)
    return name


def _unauthorized(lacking: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNAUTHORIZED, lacking, {"WWW-Authenticate": "Bearer"})


Acting = Annotated[str, Depends(acting)]


@router.get("/session")
def visitor(served: Served, request: Request) -> Visitor:
    """Returns who is signed in with this browser."""
    return Visitor(name=session_name(served, request))


@router.post("/session")
def sign_in(served: Served, request: Request, response: Response, given: SignIn) -> Visitor:
    """Opens a session; its cookie is not accessible to scripts or to other sites."""
    opened = served.sessions.begin(given.token.get_secret_value())
    if opened is None:
        raise _unauthorized(UNKNOWN_TOKEN)
    value, name = opened
    set_cookie(response, request, value)
    return Visitor(name=name)


@router.delete("/session")
def sign_out(served: Served, request: Request, response: Response) -> Visitor:
    """Ends the session of this browser."""
    value = request.cookies.get(cookie_name(request))
    if value is not None:
        served.sessions.end(value)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return Visitor(name=None)


def set_cookie(response: Response, request: Request, value: str) -> None:
    """Sets the session cookie in the response."""
    secure = request.url.scheme == "https"
    name = cookie_name(request)
    response.set_cookie(name, value, max_age=SECONDS, httponly=True, samesite="strict", secure=secure)
