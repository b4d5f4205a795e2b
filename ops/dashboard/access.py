"""Who asks: the holder of a named token, told by `Authorization: Bearer`, or by the cookie of a session that was opened with one.

A cookie counts only where the browser says that one of the dashboard's own pages sent the request, since browsers send cookies
along for anybody.
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
_bearer = HTTPBearer(auto_error=False, description="A token of `yatt token create NAME`.")
NEEDS_TOKEN = "this needs a token: `yatt token create NAME` makes one, to be sent as `Authorization: Bearer TOKEN`"
UNKNOWN_TOKEN = "this token is not known, or was revoked; `yatt token list` names those there are"
SESSION_OVER = "this session is over; sign in again"


def cookie_name(request: Request) -> str:
    """The cookie of a dashboard's sessions: browsers share cookies among all ports of a host, and each port has a dashboard."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"yatt_session_{port}"


class _SessionCookie(APIKeyCookie):
    """The value of the session's cookie, whatever the port."""

    async def __call__(self, request: Request) -> str | None:
        """None where the browser sent none."""
        return request.cookies.get(cookie_name(request))


_cookie = _SessionCookie(name="yatt_session_PORT", description="The session that POST /api/v1/session opens.")


class SignIn(BaseModel):
    """A token, to open a session with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: SecretStr = Field(min_length=1, max_length=200)


class Visitor(BaseModel):
    """Who asks; no name for somebody who may only read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None


def session_name(served: Context, request: Request) -> str | None:
    """Whose session the request's cookie names; for showing who is signed in, not for letting anybody do something."""
    value = request.cookies.get(cookie_name(request))
    return None if value is None else served.sessions.name_of(value)


def acting(
    request: Request,
    served: Served,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> str:
    """The name of whoever may change something. Answers 401 to anybody else, 403 to a cookie that comes from elsewhere."""
    if bearer is not None:
        name, lacking = served.tokens.name_of(bearer.credentials), UNKNOWN_TOKEN
    elif cookie is None:
        name, lacking = None, NEEDS_TOKEN
    elif is_proven_own(request.headers, request.url.scheme):
        name, lacking = served.sessions.name_of(cookie), SESSION_OVER
    else:
        raise HTTPException(HTTPStatus.FORBIDDEN, "a session counts only for requests from the dashboard's own pages")
    if name is None:
        raise _unauthorized(lacking)
    return name


def _unauthorized(lacking: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNAUTHORIZED, lacking, {"WWW-Authenticate": "Bearer"})


Acting = Annotated[str, Depends(acting)]


@router.get("/session")
def visitor(served: Served, request: Request) -> Visitor:
    """Who is signed in with this browser."""
    return Visitor(name=session_name(served, request))


@router.post("/session")
def sign_in(served: Served, request: Request, response: Response, given: SignIn) -> Visitor:
    """Opens a session; its cookie is for the browser alone, out of reach of scripts and of other sites."""
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
    """Gives a session to the browser."""
    secure = request.url.scheme == "https"
    name = cookie_name(request)
    response.set_cookie(name, value, max_age=SECONDS, httponly=True, samesite="strict", secure=secure)
