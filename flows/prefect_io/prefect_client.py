"""Error messages for a Prefect server that does not answer or refuses a request.

Consumes errors of Prefect's client; produces text without credentials. This module imports prefect, so import it only
once the server's address is in the environment (`flows.prefect_io.prefect_server.use_server`).
"""

from __future__ import annotations

from http import HTTPStatus

from httpx import HTTPError, HTTPStatusError, TransportError
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL

from flows.prefect_io.prefect_server import PASSWORD_VARIABLE, PREFECT_VARIABLE, shown
from yatt_core.errors import IS_AWAY, AwayError, InfrastructureError
from yatt_core.logs import redact

AWAY = (HTTPError, PrefectException)
"""Errors that Prefect's client raises if the server does not answer."""
LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers that refuse a request for now."""
RUN_TAG = "run:"
"""Beginning of the tag of flow runs that names their run."""


def is_unreachable(error: BaseException) -> bool:
    """Returns True if an error reports that no server answered; Prefect raises a plain `RuntimeError` for some calls."""
    return isinstance(error, AWAY) or (isinstance(error, RuntimeError) and "Failed to reach API" in str(error))


def is_overloaded(error: BaseException) -> bool:
    """Returns True if a server answered that it cannot serve the request for now."""
    if not isinstance(error, HTTPStatusError):
        return False
    status = error.response.status_code
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in LATER


def server_trouble(error: Exception) -> str:
    """Returns a message about which server failed and how, for callers that continue without Prefect."""
    # The text of a parser's error can be as long as the page that it could not read.
    text = "the answer is not one of Prefect's" if isinstance(error, ValueError) else str(error)
    if isinstance(error, HTTPStatusError):
        # The library's text has several lines, and the address of a page about status codes.
        text = f"it answered {error.response.status_code} {error.response.reason_phrase}".rstrip()
        return redact(f"Prefect's server at {shown(PREFECT_API_URL.value() or '')}: {text}")
    return redact(f"Prefect's server at {shown(PREFECT_API_URL.value() or '')}: {type(error).__name__}: {text}")


def server_needed(error: Exception) -> str:
    """Returns the message for callers that need Prefect: as `server_trouble`, with a remedy if no server answers."""
    return server_trouble(error) + _remedy(error)


def start_trouble(error: Exception) -> InfrastructureError:
    """Returns YATT's error for a server that is needed at the start: `AwayError` if it may come back by itself."""
    if isinstance(error, HTTPStatusError) and not is_overloaded(error):
        return InfrastructureError(server_needed(error))
    return AwayError(f"the Prefect server{IS_AWAY}{server_needed(error)}")


def _remedy(error: Exception) -> str:
    if isinstance(error, TransportError):
        return f"; start one with `yatt up`, or name another in {PREFECT_VARIABLE}"
    if isinstance(error, HTTPStatusError) and error.response.status_code == HTTPStatus.UNAUTHORIZED:
        return f"; set {PASSWORD_VARIABLE} to the server's user:password"
    return ""
