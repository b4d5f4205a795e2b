"""Gates in front of services: pass on what is asked, or are away, wholly or in part, and note every request.

Consumes requests over HTTP, or connections of any kind, and the mode that is set. Produces answers of the service behind,
failures, and a line of JSON for each request: what was asked, whether it was answered, and when.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout, WSMsgType, web

from benchmarks.outside.schedule import Mode

ANSWERED = "answered"
FAILED = "failed"
STICKY = 0.05
"""Fraction of identities all of whose requests fail while a gate is partly away."""
THIRD = 1.0 / 3.0
LARGEST_BYTES = 1 << 30
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "expect"})
COPY_BYTES = 1 << 16

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
Identify = Callable[[web.Request, bytes], str]


class RequestLog:
    """The lines about requests, in a file that others may read meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, gate: str, what: str, began: float, outcome: str, told: str = "") -> None:
        """Notes a request that has ended.

        what: its identity.
        began: when it arrived, in seconds since 1970.
        told: the answer, if it matters.
        """
        line = {"gate": gate, "what": what, "began": began, "ended": time.time(), "outcome": outcome, "told": told}
        self._file.write(json.dumps(line) + "\n")


class Gate(Protocol):
    """What can be taken away."""

    async def start(self) -> None:
        """Begins to serve."""
        ...

    async def set(self, mode: Mode | None) -> None:
        """Takes the service away, or brings it back if no mode is given."""
        ...


class HttpGate:
    """A gate for HTTP.

    address, port: where it serves.
    answer: returns the answer to a request and its body.
    identify: returns what a request asks; two that ask the same have the same text.
    seed: decides which requests fail in part.
    """

    def __init__(
        self, name: str, address: str, port: int, log: RequestLog, answer: Answer, identify: Identify, seed: int
    ) -> None:
        self._name = name
        self._address = address
        self._port = port
        self._log = log
        self._answer = answer
        self._identify = identify
        self._chance = random.Random(f"yatt.outside.gate:{name}:{seed}")
        self._seed = seed
        self._mode: Mode | None = None
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begins to listen."""
        server = web.Application(client_max_size=LARGEST_BYTES)
        server.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(server, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, self._port, reuse_address=True).start()

    async def set(self, mode: Mode | None) -> None:
        """Takes the service away, or brings it back if no mode is given."""
        before = self._mode
        self._mode = mode
        self._changed.set()
        self._changed = asyncio.Event()
        if mode == Mode.REFUSE and self._runner is not None:
            runner = self._runner
            self._runner = None
            await runner.cleanup()
        elif before == Mode.REFUSE and mode != Mode.REFUSE:
            await self.start()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        began = time.time()
        what = f"{request.method} {request.path}"
        outcome = FAILED
        told = ""
        try:
            is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
            body = b"" if is_socket else await request.read()
            what = self._identify(request, body)
            if not await self._passes(request, what):
                return web.Response(status=503, text="away by the campaign")
            response = await self._answer(request, body)
            if not response.prepared:
                await response.prepare(request)
                await response.write_eof()
            outcome = ANSWERED if response.status < 500 else FAILED
            told = str(response.get("told", ""))
            return response
        except (ClientError, OSError) as error:
            return web.Response(status=502, text=type(error).__name__)
        finally:
            self._log.note(gate=self._name, what=what, began=began, outcome=outcome, told=told)

    async def _passes(self, request: web.Request, what: str) -> bool:
        """Returns whether a request is answered; one that hangs is cut off once the mode changes."""
        match self._mode:
            case None:
                return True
            case Mode.HANG:
                await self._changed.wait()
                if request.transport is not None:
                    request.transport.abort()
                return False
            case Mode.THIRD:
                always = random.Random(f"{self._name}:{self._seed}:{what}").random() < STICKY
                return not (always or self._chance.random() < THIRD)
            case _:
                return False


def passing_on(target: str, session: ClientSession) -> Answer:
    """Returns an answer that a server gives. target: its address, such as `http://127.0.0.1:4200`."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        url = target + request.raw_path
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _pass_on_socket(request, url, session)
        kept = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        kept.setdefault("Accept-Encoding", "identity")
        async with session.request(request.method, url, headers=kept, data=body, allow_redirects=False) as given:
            contents = await given.read()
            told = {name: value for name, value in given.headers.items() if name.lower() not in HOP_BY_HOP}
            if request.method == "HEAD" and "Content-Length" in given.headers:
                told["Content-Length"] = given.headers["Content-Length"]
            return web.Response(status=given.status, reason=given.reason, headers=told, body=contents)

    return answer


async def _pass_on_socket(request: web.Request, url: str, session: ClientSession) -> web.StreamResponse:
    asked = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
    near = web.WebSocketResponse(protocols=asked)
    await near.prepare(request)
    async with session.ws_connect(url, protocols=asked) as far:

        async def copy(source: Any, sink: Any) -> None:
            async for message in source:
                if message.type == WSMsgType.TEXT:
                    await sink.send_str(message.data)
                elif message.type == WSMsgType.BINARY:
                    await sink.send_bytes(message.data)
            await sink.close()

        await asyncio.gather(copy(near, far), copy(far, near))
    return near


def new_session() -> ClientSession:
    """Returns a client that passes bodies on as they are."""
    return ClientSession(auto_decompress=False, timeout=ClientTimeout(total=120.0), skip_auto_headers=("User-Agent",))


class SocketGate:
    """A gate for connections to a Unix socket. In part, a third of the connections are closed as they begin.

    address, port: where it serves.
    socket: the Unix socket.
    """

    def __init__(self, name: str, address: str, port: int, log: RequestLog, socket: Path, seed: int) -> None:
        self._name = name
        self._address = address
        self._port = port
        self._log = log
        self._socket = socket
        self._chance = random.Random(f"yatt.outside.gate:{name}:{seed}")
        self._mode: Mode | None = None
        self._back = asyncio.Event()
        self._back.set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._serve, self._address, self._port)

    async def set(self, mode: Mode | None) -> None:
        """Takes the service away, or brings it back if no mode is given."""
        before = self._mode
        self._mode = mode
        if mode == Mode.HANG:
            self._back.clear()
        if before == Mode.HANG and mode != Mode.HANG:
            self._cut(1.0)
            self._back.set()
        if mode == Mode.REFUSE and self._server is not None:
            server = self._server
            self._server = None
            server.close()
            self._cut(1.0)
        elif before == Mode.REFUSE and mode != Mode.REFUSE:
            await self.start()
        if mode == Mode.THIRD:
            self._cut(THIRD)

    def _cut(self, fraction: float) -> None:
        for writer in list(self._open):
            if self._chance.random() < fraction:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = time.time()
        outcome = FAILED
        self._open.add(writer)
        try:
            await self._back.wait()
            if self._mode == Mode.THIRD and self._chance.random() < THIRD:
                writer.transport.abort()
                return
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._socket))
            outcome = ANSWERED
            self._log.note(self._name, "connection", began, outcome)
            near = self._copy(reader, far_writer)
            far = self._copy(far_reader, writer)
            with suppress(OSError):
                await asyncio.gather(near, far)
        except OSError:
            return
        finally:
            self._open.discard(writer)
            if outcome == FAILED:
                self._log.note(self._name, "connection", began, outcome)
            writer.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(COPY_BYTES):
                await self._back.wait()
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()
