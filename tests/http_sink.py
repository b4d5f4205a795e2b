"""A web server on loopback that keeps what is posted to it, and can be made to fail, refuse or hang."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sink:
    """A running server.

    status: code of every answer.
    stalled: while set, requests get no answer.
    posts: all bodies received, whatever the answer was.
    """

    def __init__(self) -> None:
        self.status = 200
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.posts: list[dict[str, Any]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                sink.posts.append(json.loads(self.rfile.read(length)))
                if sink.stalled.is_set():
                    sink.released.wait(30)
                    return
                self.send_response(sink.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def taken(self) -> str:
        """Messages of all posts, one per line."""
        return "\n".join(post["message"] for post in self.posts)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def http_sink() -> Iterator[Sink]:
    sink = Sink()
    try:
        yield sink
    finally:
        sink.close()
