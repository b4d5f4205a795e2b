"""Authenticates requests and checks what their sender may do: by a token sent as `Authorization: Bearer`, or a session cookie.

Each route declares the permission that it needs by one of the dependencies here; `DECLARED` maps them to permissions. For a
change, a cookie counts only if the browser confirms that one of the dashboard's own pages sent the request, since browsers
attach cookies to requests from any site.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.requests import HTTPConnection

from ops.people.roles import Permission, Person, Role, refusal
from ops.web.bodies import Body
from ops.web.context import Context, Served
from ops.web.security import is_proven_own
from ops.web.sessions import SECONDS

router = APIRouter(prefix="/api/v1", tags=["access"])
_bearer = HTTPBearer(auto_error=False, description="A token created with `yatt token create NAME`.")
NEEDS_TOKEN = (
    "this needs a token: create one with `yatt token create NAME` and send it as `Authorization: Bearer TOKEN`"
)
NEEDS_SIGN_IN = "reading needs sign-in here: sign in, or send a token as `Authorization: Bearer TOKEN`"
UNKNOWN_TOKEN = "this token is unknown, was revoked or has expired; `yatt token list` shows the valid names"
SESSION_OVER = "this session has ended; sign in again"


def cookie_name(request: HTTPConnection) -> str:
    """Returns the session cookie's name; it contains the port, since browsers share cookies among a host's ports."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"yatt_session_{port}"


class _SessionCookie(APIKeyCookie):
    """Reads the session cookie of the request's port."""

    async def __call__(self, request: HTTPConnection) -> str | None:
        """Returns the cookie's value; None if the browser sent no cookie."""
        return request.cookies.get(cookie_name(request))


_cookie = _SessionCookie(name="yatt_session_PORT", description="A session opened with POST /api/v1/session.")


class SignIn(Body):
    """A token with which to open a session."""

    token: SecretStr = Field(min_length=1, max_length=200)


class Visitor(BaseModel):
    """The signed-in person; no name and no role for visitors who are not signed in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None
    role: Role | None = None


def session_person(served: Context, request: Request) -> Person | None:
    """Returns the person of the request's session; for display only, not for authorization."""
    value = request.cookies.get(cookie_name(request))
    return None if value is None else served.sessions.person_of(value)


def bearer_token(request: Request) -> str | None:
    """Returns the token that a request was sent with; None if there is none."""
    scheme, token = get_authorization_scheme_param(request.headers.get("authorization"))
    return token if scheme.lower() == "bearer" else None


def authenticated(request: Request, served: Context, lacking: str) -> Person:
    """Returns the person who sent a request.

    lacking: the message for a request without token and session.

    Raises `HTTPException` 401 without a valid token or session.
    """
    token = bearer_token(request)
    cookie = request.cookies.get(cookie_name(request))
    if token is not None:
        person = served.tokens.person_of(token)
        lacking = UNKNOWN_TOKEN
    elif cookie is not None:
        person = served.sessions.person_of(cookie)
        lacking = SESSION_OVER
    else:
        person = None
    if person is None:
        raise _unauthorized(lacking)
    return person


DECLARED: dict[Callable[..., Any], Permission] = {}
"""The permission that each of the dependencies declares."""


def _needs(permission: Permission) -> Callable[..., Person]:
    """Returns the dependency of routes that change something."""

    def allowed(
        request: Request,
        served: Served,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
        cookie: Annotated[str | None, Depends(_cookie)],
    ) -> Person:
        if bearer is None and cookie is not None and not is_proven_own(request.headers, request.url.scheme):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, "a session is valid only for requests from the dashboard's own pages"
            )
        return permitted(authenticated(request, served, NEEDS_TOKEN), permission)

    DECLARED[allowed] = permission
    return allowed


def permitted(person: Person, permission: Permission) -> Person:
    """Returns the person. Raises `HTTPException` 403 if their role does not include the permission."""
    if permission not in person.permissions:
        raise HTTPException(HTTPStatus.FORBIDDEN, refusal(person, permission))
    return person


def reading(request: Request, served: Served) -> None:
    """Lets everyone read, unless the dashboard requires sign-in.

    Raises `HTTPException` 401 then, without a valid token or session.
    """
    if served.reading_needs_sign_in:
        permitted(authenticated(request, served, NEEDS_SIGN_IN), Permission.READ)


DECLARED[reading] = Permission.READ
READING = (Depends(reading),)
"""The dependencies of a router whose routes read; routes that change something need one of those below as well."""
operating = _needs(Permission.OPERATE)
approving = _needs(Permission.APPROVE)
administering = _needs(Permission.ADMINISTER)
Operator = Annotated[Person, Depends(operating)]
Approver = Annotated[Person, Depends(approving)]
Administrator = Annotated[Person, Depends(administering)]
"""The person who acts, for routes that need the role as well as the name."""


def acting(person: Operator) -> str:
    """Returns the name of a person who may operate runs."""
    return person.name


def _administering_name(person: Administrator) -> str:
    return person.name


Acting = Annotated[str, Depends(acting)]
Administering = Annotated[str, Depends(_administering_name)]
"""The name of the person who acts, for the audit chain."""


def _unauthorized(lacking: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNAUTHORIZED, lacking, {"WWW-Authenticate": "Bearer"})


@router.get("/session")
def visitor(served: Served, request: Request) -> Visitor:
    """Returns who is signed in with this browser."""
    person = session_person(served, request)
    return Visitor(name=None) if person is None else Visitor(name=person.name, role=person.role)


@router.post("/session")
def sign_in(served: Served, request: Request, response: Response, given: SignIn) -> Visitor:
    """Opens a session; its cookie is not accessible to scripts or to other sites."""
    opened = served.sessions.begin(given.token.get_secret_value())
    if opened is None:
        raise _unauthorized(UNKNOWN_TOKEN)
    value, person = opened
    set_cookie(response, request, value)
    return Visitor(name=person.name, role=person.role)


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
