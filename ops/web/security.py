"""Checks every request before routing (host, origin and size), and adds security headers to every response.

Plain ASGI middleware, so that streams pass unbuffered. A refused request reaches no route.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops.web.problems import problem

HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of the loopback host. Any other may come from DNS rebinding, by which an attacker could read the pages."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_BYTES = 512 << 10
"""Maximum length of a body: a form with the longest spec, of which every character may take twelve bytes."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer, with which browsers would send the origin `null` for the dashboard's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityMiddleware:
    """The ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request or passes it on; the response has the security headers either way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        refused = refusal(request.method, request.headers, request.url.scheme)
        if refused is not None:
            await problem(request, *refused)(scope, receive, send_guarded)
            return
        await self._app(scope, _limited(receive), send_guarded)


TOO_LARGE = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body exceeds {BODY_BYTES} bytes")


def refusal(method: str, headers: Headers, scheme: str) -> tuple[int, str] | None:
    """Returns the status and the reason for refusing a request; None if it may pass."""
    host = headers.get("host", "")
    if _name_of(host) not in HOSTS:
        return HTTPStatus.MISDIRECTED_REQUEST, "the dashboard accepts only the hosts localhost, 127.0.0.1 and [::1]"
    if method not in SAFE_METHODS and not comes_from_here(headers, scheme):
        return HTTPStatus.FORBIDDEN, "a request that changes something must come from the dashboard's own pages"
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 10) or int(length) > BODY_BYTES:
        return TOO_LARGE
    return None


def comes_from_here(headers: Headers, scheme: str) -> bool:
    """Returns True unless a browser reports that another site's page sent the request. Programs send no such header."""
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    if origin is not None and origin != f"{scheme}://{headers.get('host', '')}":
        return False
    return site in (None, "same-origin", "none")


def is_proven_own(headers: Headers, scheme: str) -> bool:
    """Returns True if a browser confirms that one of the dashboard's pages sent the request; a cookie is no proof."""
    said = headers.get("origin") is not None or headers.get("sec-fetch-site") == "same-origin"
    return said and comes_from_here(headers, scheme)


def _name_of(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return ""
    return name if parts.netloc == host and "@" not in host else ""


def _limited(receive: Receive) -> Receive:
    """Limits the size of a body as it is received, since its length may not have been declared."""
    seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_BYTES:
            # The only exception that FastAPI passes on while it reads a body.
            raise HTTPException(*TOO_LARGE)
        return message

    return receive_limited
