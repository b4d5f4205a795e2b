"""Errors of the HTTP API: problem documents (RFC 9457) as exceptions, one class for each kind of status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ApiError(Exception):
    """The server refused a request or could not answer it.

    status: the HTTP status; 0 if there was no answer.
    detail: the server's message.
    errors: the invalid parts of the request, such as the mistakes of a spec.
    """

    def __init__(self, status: int, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        lines = [" ".join(each.values()) for each in errors]
        super().__init__("\n".join([detail, *lines]))
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)


class InvalidRequest(ApiError):
    """The request or the spec in it has mistakes (400, 413, 422)."""


class NotAllowed(ApiError):
    """The request needs a token, or a valid one (401, 403)."""


class NotFound(ApiError):
    """There is no such run, iteration or checkpoint (404)."""


class Conflict(ApiError):
    """The run's state does not permit it, such as a run that has a driver (409)."""


class Unavailable(ApiError):
    """The server or its ledger cannot answer now; a retry may help (503, or no connection)."""


BY_STATUS: Mapping[int, type[ApiError]] = {
    0: Unavailable,
    400: InvalidRequest,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    422: InvalidRequest,
    503: Unavailable,
}


def error_of(status: int, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> ApiError:
    """Returns the error of a status."""
    return BY_STATUS.get(status, ApiError)(status, detail, errors)
