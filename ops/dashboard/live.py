"""Live updates of a run as server-sent events.

Consumes the ledger, looked at once a second in a worker thread. Produces an event `run` (the run at a glance, as JSON) whenever
something of it changed, with the number of the audit chain's last link as its id; a comment now and then keeps the stream open.
It waits for the clock alone, and ends when the browser goes away or the server stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from db.core.errors import LedgerUnavailable
from ops.dashboard.context import Context, RunId, Served
from ops.queries.run_list import find_line

router = APIRouter(prefix="/api/v1", tags=["live"])
POLL_SECONDS, SILENCE_SECONDS = 1.0, 15.0
STREAMS = 64
"""Open at a time; each costs the ledger a look a second."""
AGEING = ("last_commit_age", "lease_expires_in", "eta_seconds")
"""Fields that change by the clock alone, which is no news."""


@router.get(
    "/runs/{run_id}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def live(served: Served, request: Request, run_id: RunId) -> StreamingResponse:
    """The run at a glance, again whenever it changes, until the client goes away."""
    first = await run_in_threadpool(_look, served, run_id)
    if served.streams.count >= STREAMS:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS} live views are open already; close one")
    return _Stream(served, _events(served, request, run_id, first))


class _Stream(StreamingResponse):
    """A stream, which counts from when it is promised to when it is over, even if nothing of it was ever asked for."""

    def __init__(self, served: Context, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams = served.streams
        self._streams.count += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.count -= 1


async def _events(served: Context, request: Request, run_id: str, first: dict[str, Any]) -> AsyncIterator[str]:
    seen: dict[str, Any] = {}
    news: dict[str, Any] | None = first
    silent = 0.0
    while not await request.is_disconnected():
        if news is not None and _lasting(news) != seen:
            seen, silent = _lasting(news), 0.0
            yield event("run", news, int(news["event_seq"]))
        elif silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(POLL_SECONDS)
        silent += POLL_SECONDS
        try:
            news = await run_in_threadpool(_look, served, run_id)
        except LedgerUnavailable:  # it may come back; the browser goes on with what it has
            news = None


def event(name: str, data: dict[str, Any], number: int) -> str:
    """An event as it goes over the wire. JSON has no raw line ends, so a text in it cannot end the event."""
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


def _look(served: Context, run_id: str) -> dict[str, Any]:
    return asdict(find_line(served.ledger, run_id))


def _lasting(news: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in news.items() if key not in AGEING}
