"""Deployments are listed although those of other homes, or often beginning ones, fill the answers of Prefect's server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flows.prefect_io.prefect_server import SharedServer
from flows.run.home import Home
from ops.queries.deployments import PAGE, WINDOWS, deployments

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


@contextmanager
def server_with(found: Rows, starts: Rows, is_protected: bool = False) -> Iterator[SharedServer]:
    """Runs a server that answers the two questions as Prefect's does, with its limit of rows.

    is_protected: whether it wants a token against forged requests.
    """
    tokens = dict[str, str]()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/api/"):
                self.answer(404, {})
                return
            (client,) = parse_qs(urlsplit(self.path).query)["client"]
            tokens[client] = f"token of {client}"
            self.answer(200 if is_protected else 422, {"token": tokens[client]})

        def do_POST(self) -> None:
            client = self.headers.get("Prefect-Csrf-Client", "")
            if is_protected and self.headers.get("Prefect-Csrf-Token") != tokens.get(client, "none"):
                self.answer(403, {"detail": "Missing CSRF token."})
                return
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["limit"] <= PAGE
            rows = found
            if self.path == "/api/flow_runs/filter":
                of = asked["deployments"]["id"]["any_"]
                rows = sorted(
                    (row for row in starts if row["deployment_id"] in of), key=lambda row: row["expected_start_time"]
                )
            offset = asked.get("offset", 0)
            self.answer(200, rows[offset : offset + asked["limit"]])

        def answer(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield SharedServer(f"http://127.0.0.1:{server.server_port}", "the server")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def deployment(name: str, home: Path) -> dict[str, Any]:
    return {"id": name, "name": name, "parameters": {"home": str(home), "deployed_run": "toy-1", "run": "continue"}}


def start(name: str, minutes: int) -> dict[str, Any]:
    return {"deployment_id": name, "expected_start_time": (BEGIN + timedelta(minutes=minutes)).isoformat()}


def test_those_of_other_homes_hide_none_and_none_hides_the_windows_of_others(tmp_path: Path) -> None:
    others = [deployment(f"a-{number:03}", tmp_path / "other") for number in range(PAGE)]
    own = [deployment("every-minute", tmp_path), deployment("nightly", tmp_path)]
    starts = [start("every-minute", minute) for minute in range(PAGE)] + [
        start("nightly", 600 + day) for day in range(9)
    ]
    with server_with([*others, *own], starts) as server:
        found = deployments(Home(tmp_path), server)
    assert found.trouble == ""
    assert [each.name for each in found.deployments] == ["every-minute", "nightly"]
    begins = [
        [round(1000 * (BEGIN + timedelta(minutes=first + k)).timestamp()) for k in range(WINDOWS)] for first in (0, 600)
    ]
    assert [list(each.next) for each in found.deployments] == begins


def test_a_server_that_wants_a_token_against_forged_requests_is_given_one(tmp_path: Path) -> None:
    with server_with([deployment("nightly", tmp_path)], [start("nightly", 5)], is_protected=True) as server:
        found = deployments(Home(tmp_path), server)
    assert (found.trouble, [each.name for each in found.deployments]) == ("", ["nightly"])


def test_a_refusal_is_told_with_its_status(tmp_path: Path) -> None:
    with server_with([{"name": "without an id"}], []) as server:
        assert "KeyError" in deployments(Home(tmp_path), server).trouble
        elsewhere = SharedServer(f"{server.address}/elsewhere", "the server")
        assert "HTTP status 404 for /elsewhere/api/csrf-token" in deployments(Home(tmp_path), elsewhere).trouble
