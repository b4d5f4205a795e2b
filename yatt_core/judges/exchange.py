"""Requests to an endpoint, each with a limit on its total time.

Consumes a client and JSON bodies. Produces statuses and bodies. The limit covers everything from connecting to
the last byte of the body. httpx limits only the wait for each part of a response, so an endpoint that sends a byte
now and then, or one `100 Continue` after another, could delay a request indefinitely. Requests therefore run in an
event loop, where the limit on the total time cancels any wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx

from yatt_core.judges.completion import MalformedError
from yatt_core.judges.retrying import meaning_of

LARGEST_ANSWER_BYTES = 4 << 20
"""Maximum size of a response; a larger one counts as malformed."""
EXPLAINED = frozenset({400, 422})
"""The statuses with which endpoints refuse a field of a request; the body names it."""


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """A response of the endpoint.

    retry_after: the unparsed `Retry-After` header; None if there is none.
    body: empty unless the response contains a completion, or says what was wrong with the request.
    """

    status: int
    retry_after: str | None
    body: bytes


class Exchange:
    """A client in its own event loop; any number of threads may post in parallel."""

    def __init__(self, client: httpx.AsyncClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True).start()

    def post(self, url: str, body: Mapping[str, object]) -> EndpointResponse:
        """Returns the response.

        Raises `TimeoutError` after the time limit, `httpx.HTTPError`, and `MalformedError` if the response is
        too large.
        """
        return asyncio.run_coroutine_threadsafe(self._post(url, body), self._loop).result()

    async def _post(self, url: str, body: Mapping[str, object]) -> EndpointResponse:
        async with asyncio.timeout(self._seconds), self._client.stream("POST", url, json=body) as response:
            read = b""
            if meaning_of(response.status_code) == "fine":
                read = await _read(response)
            elif response.status_code in EXPLAINED:
                with suppress(MalformedError, httpx.HTTPError):  # without a body, the status still says enough
                    read = await _read(response)
            return EndpointResponse(response.status_code, response.headers.get("retry-after"), read)


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > LARGEST_ANSWER_BYTES:
            raise MalformedError(f"a response of more than {LARGEST_ANSWER_BYTES} bytes")
    return bytes(body)
