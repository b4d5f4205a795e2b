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

from flows.prefect_io.prefect_server import SharedServer
from flows.run.home import Home
from ops.queries.deployments import PAGE, WINDOWS, deployments

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


@contextmanager
def server_with(found: Rows, starts: Rows) -> Iterator[SharedServer]:
    """Runs a server that answers the two questions as Prefect's does, with its limit of rows."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["limit"] <= PAGE
            rows = found
            if self.path == "/api/flow_runs/filter":
                of = asked["deployments"]["id"]["any_"]
                rows = sorted(
                    (row for row in starts if row["deployment_id"] in of), key=lambda row: row["expected_start_time"]
                )
            offset = asked.get("offset", 0)
            body = json.dumps(rows[offset : offset + asked["limit"]]).encode()
            self.send_response(200)
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
