"""Sends requests and turns problem documents into errors.

Consumes the server's address and a token. Produces the JSON of a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from yatt_client.errors import ApiError, error_of


class Transport:
    """A connection to a server; a context manager, which closes it.

    address: such as `http://127.0.0.1:8686`.
    token: as `yatt token create NAME` prints it; None to read only.
    timeout: seconds to wait for an answer.
    transport: httpx's own transport, for proxies and tests.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout, transport=transport)

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns the JSON of the response; parameters that are None are left out. Raises `ApiError`."""
        given = {key: value for key, value in (query or {}).items() if value is not None}
        sent = None if body is None else {key: value for key, value in body.items() if value is not None}
        try:
            response = self._http.request(method, path, params=given, json=sent)
        except httpx.HTTPError as error:
            raise error_of(0, f"{method} {self._http.base_url}{path.lstrip('/')}: {error}") from error
        if response.is_error:
            raise problem_of(response)
        return response.json()


def problem_of(response: httpx.Response) -> ApiError:
    """Returns the error of a response that has been read."""
    try:
        document = response.json()
        return error_of(response.status_code, str(document["detail"]), document.get("errors", ()))
    except (ValueError, KeyError, TypeError, AttributeError):  # from a proxy
        return error_of(response.status_code, response.text[:500] or response.reason_phrase)


def segment(value: object) -> str:
    """Returns a value as a segment of a path."""
    return quote(str(value), safe="")
