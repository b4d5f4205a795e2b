"""Requests to an endpoint, each within one time for all of it.

Consumes a client and JSON bodies; produces statuses and bodies. The time counts from connecting to the body's last byte: httpx
limits the wait for each part alone, and an endpoint that sends a byte now and then, or one `100 Continue` after another, would
hold a request for good. So requests run in an event loop, where a time limit cuts whatever is waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from yatt_core.judges.completion import MalformedError
from yatt_core.judges.retrying import meaning_of

LARGEST_ANSWER_BYTES = 4 << 20
"""A longer answer counts as malformed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """retry_after: the header as it stands there. body: empty where the status says that it holds no completion."""

    status: int
    retry_after: str | None
    body: bytes


class Exchange:
    """A client in an event loop of its own. Any number of threads may post at once."""

    def __init__(self, client: httpx.AsyncClient, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True).start()

    def post(self, url: str, body: Mapping[str, object]) -> Answer:
        """The answer. Raises `TimeoutError` past the time, `httpx.HTTPError`, and `MalformedError` for one that is too long."""
        return asyncio.run_coroutine_threadsafe(self._post(url, body), self._loop).result()

    async def _post(self, url: str, body: Mapping[str, object]) -> Answer:
        async with asyncio.timeout(self._seconds), self._client.stream("POST", url, json=body) as response:
            fine = meaning_of(response.status_code) == "fine"
            read = await _read(response) if fine else b""
            return Answer(response.status_code, response.headers.get("retry-after"), read)


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > LARGEST_ANSWER_BYTES:
            raise MalformedError(f"an answer of more than {LARGEST_ANSWER_BYTES} bytes")
    return bytes(body)
