"""An S3 server, on loopback by default: moto, behind a proxy that checks the key and can refuse requests.

moto runs in a separate process, because modules that it imports raise errors on attribute lookups, which other
libraries of this process perform. It neither verifies signatures nor throttles; the proxy checks the key and throttles.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

KEY = "yatt-test-key"
SECRET = "yatt-test-secret-that-must-never-be-seen"
ANSWER = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>'
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "server", "date"}


class _Quiet(WSGIRequestHandler):
    """A request handler that logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Does nothing."""


def _start_moto(timeout: float = 120.0) -> tuple[subprocess.Popen[bytes], int]:
    """Starts moto; returns the process and the port that it prints once it serves."""
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        deadline = time.monotonic() + timeout
        while process.poll() is None and time.monotonic() < deadline:
            said.seek(0)
            if found := re.search(rb"Running on http://127\.0\.0\.1:(\d+)", text := said.read()):
                return process, int(found[1])
            time.sleep(0.05)
        process.kill()
        raise RuntimeError(f"moto does not serve: {text.decode()}")


def _forward(port: int) -> Application:
    """Returns an application that forwards requests to a server and returns its answers."""

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        if len(body) < length:
            # The client has died. moto would store what has arrived, which S3 does not.
            raise ConnectionAbortedError(f"{len(body)} of {length} bytes arrived")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest(
            environ["REQUEST_METHOD"], environ["REQUEST_URI"], skip_host=True, skip_accept_encoding=True
        )
        for name, value in environ.items():
            if name.startswith("HTTP_") and name not in ("HTTP_CONNECTION", "HTTP_EXPECT"):
                connection.putheader(name[5:].replace("_", "-"), value)
        connection.putheader("Content-Type", environ.get("CONTENT_TYPE", ""))
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        contents = answer.read()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
        start(f"{answer.status} {answer.reason}", kept)
        connection.close()
        return [contents]

    return serve


@dataclass
class S3Server:
    """The server and its proxy.

    host: the address at which it serves.
    requests: method and path of each served request.
    answers: each answered request, with the bytes of the answer.
    refusals: (status, code) of the answers to the next requests, in order.
    strikes: (pattern, callback) pairs in order; each is called once, before a request that matches is served.
    """

    host: str = "127.0.0.1"
    requests: list[str] = field(default_factory=list)
    answers: list[tuple[str, int]] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    strikes: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    _server: BaseWSGIServer | None = None
    _moto: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._moto, port = _start_moto()
        self._server = make_server(self.host, 0, self._door(_forward(port)), threaded=True, request_handler=_Quiet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self._server and self._moto
        self._server.shutdown()
        self._moto.terminate()
        self._moto.wait(30)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a process needs to use the server."""
        assert self._server
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def make_bucket(self, name: str) -> None:
        """Creates a bucket without a client, whose creation would take longer than most tests."""
        address = f"{self.environment['AWS_ENDPOINT_URL']}/{name}"
        signed = (
            f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        )
        request = urllib.request.Request(address, method="PUT", headers={"Authorization": signed})
        urllib.request.urlopen(request, timeout=30).close()

    def refuse(self, status: int, code: str, times: int = 1) -> None:
        self.refusals += [(status, code)] * times

    def _door(self, moto: Application) -> Application:
        def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            given = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
            refusal = (403, "InvalidAccessKeyId") if given is None or given[1] != KEY else None
            if refusal is None and self.refusals:
                refusal = self.refusals.pop(0)
            if refusal is None:
                request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
                self.requests.append(request)
                if self.strikes and re.search(self.strikes[0][0], request):
                    self.strikes.pop(0)[1]()
                answer = moto(environ, start)
                self.answers.append((request, sum(len(piece) for piece in answer)))
                return answer
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = ANSWER.format(code=refusal[1]).encode()
            start(
                f"{refusal[0]} {refusal[1]}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
            )
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

        return serve
