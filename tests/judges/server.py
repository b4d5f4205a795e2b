"""A local HTTP server that imitates an OpenAI-compatible endpoint, with scripted replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-very-secret"


@dataclass
class Reply:
    """The reply to a request. hold: an event that the server waits for before it sends anything."""

    status: int = 200
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


@dataclass
class Server:
    """The script of the replies, and a record of the requests.

    answer: takes a request's body and number (counted from 0), and returns the reply.
    busiest: largest number of requests in progress at a time.
    under_way: number of requests in progress now.
    """

    url: str
    answer: Callable[[dict[str, Any], int], Reply]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busiest: int = 0
    under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def completion(text: Any, **rest: Any) -> dict[str, Any]:
    """Returns a chat completion with one choice."""
    usage = {"completion_tokens": 3, "prompt_tokens": 11}
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": usage,
        **rest,
    }


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], Reply]) -> Iterator[Server]:
    """Runs a server on loopback inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                number = len(server.bodies)
                server.bodies.append(body)
                server.headers.append({**dict(self.headers.items()), "path": self.path})
                server.under_way += 1
                server.busiest = max(server.busiest, server.under_way)
            reply = server.answer(body, number)
            if reply.hold is not None:
                reply.hold.wait(30)
            with server.lock:
                server.under_way -= 1
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}/v1", answer)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
