"""Live updates over a real socket: one event per change, none for the mere passing of time, an end with the server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from flows.run.home import Home
from ops.dashboard import live
from ops.dashboard.app import create_app
from tests.db.tools import holder
from tests.ops.seeding import commit_of


@pytest.fixture
def server(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[uvicorn.Server]:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(live, "SILENCE_SECONDS", 0.2)
    config = uvicorn.Config(create_app(home), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # A request sent before the server is up waits.
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    server.address = f"http://127.0.0.1:{listener.getsockname()[1]}"  # type: ignore[attr-defined]
    yield server
    server.should_exit = True
    thread.join()
    listener.close()


class Stream:
    """Yields the events of a stream, one at a time."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()

    def next(self) -> dict[str, Any]:
        event: dict[str, Any] = {}
        for line in self._lines:
            if not line and event:
                return event
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = json.loads(value) if name == "data" else value
        raise EOFError


@pytest.fixture
def client(server: uvicorn.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:  # type: ignore[attr-defined]
        yield client


def test_a_stream_sends_each_change_once_and_ends_with_the_server(
    server: uvicorn.Server, client: httpx.Client, home: Home
) -> None:
    with client.stream("GET", "/api/v1/runs/toy-1/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        stream = Stream(answer)
        first = stream.next()
        assert (first["event"], first["data"]["iteration"], first["data"]["driver"]) == ("run", 2, "nobody")
        with Ledger.open(home.ledger) as ledger:
            head = ledger.events.head("toy-1").seq
            assert first["id"] == str(head)
            fence = ledger.leases.acquire("toy-1", holder("a new driver\n\ndata: {}"), 600)
            driven = stream.next()
            assert driven["data"]["driver"] == "driven" and "a new driver\n\ndata: {}" in driven["data"]["holder"]
            ledger.leases.renew(fence, 700)  # Sends no event.
            ledger.outbox.enqueue(fence, [OutboxEntry("x", "tags", {}, 1)])
            ledger.commits.commit(fence, commit_of(3))
            news = stream.next()
            # The writes in between sent no event either, or this would not be the next one.
            assert (news["data"]["iteration"], news["data"]["reward"]) == (3, 0.3)
            assert int(news["id"]) > int(driven["id"])
        server.should_exit = True
        with pytest.raises((EOFError, httpx.RemoteProtocolError, httpx.ReadError)):
            while True:
                stream.next()


def test_the_stream_of_a_finished_run_ends_and_its_page_is_not_live(
    server: uvicorn.Server, client: httpx.Client, home: Home
) -> None:
    path = "/api/v1/runs/toy-1/live"
    with Ledger.open(home.ledger) as ledger, client.stream("GET", path) as answer:
        stream = Stream(answer)
        stream.next()
        assert "data-live" in client.get("/runs/toy-1").text and client.get("/runs/toy-1/now").status_code == 200
        fence = ledger.leases.acquire("toy-1", holder("the last driver"), 600)
        ledger.runs.set_state(fence, "completed", "target reached")
        while (news := stream.next())["data"]["state"] != "completed":
            pass
        assert news["data"]["driver"] == "driven", "it is not finished before its driver is gone"
        ledger.leases.release(fence)
        events = [stream.next()["event"], stream.next()["event"]]
        assert events == ["run", "end"]
        with pytest.raises(EOFError):
            stream.next()
    with client.stream("GET", path) as answer:
        assert "event: end" in answer.read().decode()
    page = client.get("/runs/toy-1").text
    assert "data-live" not in page and "every 15s" not in page
    assert "every 5s" not in client.get("/runs/toy-1/logs").text
    assert client.get("/runs/toy-1/now").status_code == 286, "htmx stops polling"
    assert "every 5s" in client.get("/runs/toy-2/logs").text


def test_unknown_runs_have_no_stream_and_streams_have_a_limit(
    server: uvicorn.Server, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/api/v1/runs/none/live").status_code == 404
    monkeypatch.setattr(live, "STREAMS", 1)
    with client.stream("GET", "/api/v1/runs/toy-1/live") as answer:
        first = Stream(answer)  # A reference is kept, since a stream that is garbage-collected is closed.
        first.next()
        refused = client.get("/api/v1/runs/toy-1/live")
        assert refused.status_code == 503 and "1 live views" in refused.json()["detail"]
    answered = 503
    while answered == 503:  # Until the server has noticed that the first one is closed.
        with client.stream("GET", "/api/v1/runs/toy-1/live") as answer:
            answered = answer.status_code
    assert answered == 200


def test_a_stream_counts_before_its_first_event_and_not_after_its_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAMS", 1)
    served = create_app(home).state.context

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        raise OSError("the browser went away")

    async def two_at_once() -> None:
        request = Request({"type": "http"}, gone)
        promised = await live.live(served, request, "toy-1")
        with pytest.raises(HTTPException, match="1 live views"):
            await live.live(served, request, "toy-1")
        with pytest.raises(ClientDisconnect):
            await promised({"type": "http", "asgi": {"spec_version": "2.4"}}, gone, send)

    asyncio.run(two_at_once())
    assert served.streams.count == 0
    served.ledger.close()


def test_a_text_cannot_end_an_event() -> None:
    wire = live.event("run", {"holder": "a\n\nevent: x\rdata: y"}, 7)
    assert wire.count("\n\n") == 1 and wire.endswith("\n\n") and "\r" not in wire
