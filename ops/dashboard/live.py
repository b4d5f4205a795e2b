"""Live updates of a run as server-sent events.

Consumes the ledger, polled once a second in a worker thread. Produces an event `run` (the run's summary, as JSON) whenever it
changes, with the number of the audit chain's last event as its id; occasional comments keep the stream open. A stream ends when
the browser disconnects, the server stops, or the run is finished: its last event is then `end`, and a client must not reconnect.
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
from ops.queries.run_list import find_line, is_finished
from ops.web.context import Context, RunId, Served

router = APIRouter(prefix="/api/v1", tags=["live"])
POLL_SECONDS = 1.0
SILENCE_SECONDS = 15.0
STREAMS = 64
"""Maximum number of open streams; each costs one query per second."""
AGEING = ("last_commit_age", "lease_expires_in", "eta_seconds")
"""Fields that change merely because time passes; such a change sends no event."""


@router.get(
    "/runs/{run_id}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def live(served: Served, request: Request, run_id: RunId) -> StreamingResponse:
    """Streams the run's summary, now and whenever it changes, until the run is finished or the client disconnects."""
    first = await run_in_threadpool(_look, served, run_id)
    if served.streams.count >= STREAMS:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS} live views are already open; close one")
    return _Stream(served, _events(served, request, run_id, first))


class _Stream(StreamingResponse):
    """A stream that is counted from its creation until it has been sent, even if the client never reads from it."""

    def __init__(self, served: Context, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams = served.streams
        self._streams.count += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
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
            seen = _lasting(news)
            silent = 0.0
            yield event("run", news, int(news["event_seq"]))
            if is_finished(news["state"], news["driver"]):
                yield event("end", {}, int(news["event_seq"]))
                return
        elif silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(POLL_SECONDS)
        silent += POLL_SECONDS
        try:
            news = await run_in_threadpool(_look, served, run_id)
        except LedgerUnavailable:  # it may come back; meanwhile the browser keeps what it has
            news = None


def event(name: str, data: dict[str, Any], number: int) -> str:
    """Formats a server-sent event. JSON contains no raw line breaks, so no text in it can end the event."""
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


def _look(served: Context, run_id: str) -> dict[str, Any]:
    return asdict(find_line(served.ledger, run_id))


def _lasting(news: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in news.items() if key not in AGEING}
