"""A service that speaks as much of Weights & Biases' protocol as a run and `wandb.Api` use, and keeps what it receives."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ReceivedRun:
    """A run on the service. history: its lines in order, as they were appended."""

    history: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    notes: str = ""
    exit_codes: list[int] = field(default_factory=list)


@dataclass
class Received:
    """What the service has: runs by id, and every body and path it was sent.

    delay: lines that arrive are shown only once it is False.
    """

    address: str = ""
    runs: dict[str, ReceivedRun] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables.get("name")
        if "RunResumeStatus" in query:
            run = self.runs.get(str(name))
            return {
                "model": {"id": "P", "name": "e", "entity": {"id": "E", "name": "team"}, "bucket": bucket(run, name)}
            }
        if "UpsertBucket" in query:
            inserted = name not in self.runs
            run = self.runs.setdefault(str(name), ReceivedRun())
            sent = json.loads(variables.get("config") or "{}")
            run.config |= {key: each["value"] for key, each in sent.items() if key != "_wandb"}
            run.notes = variables.get("notes") or run.notes
            return {"upsertBucket": {"bucket": bucket(run, name), "inserted": inserted}}
        if "viewer" in query:
            return {"viewer": {"id": "U", "entity": "team", "username": "ann", "teams": {"edges": []}, "flags": "{}"}}
        if "RunHistoryKeys" in query:
            last = max((line["_step"] for line in self.runs[str(name)].history), default=-1)
            return {"project": {"run": {"historyKeys": {"lastStep": last}}}}
        if "CreateRunFiles" in query:
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": []}}
        if "query Run(" in query or "project(" in query:
            return {"project": {"run": bucket(self.runs.get(str(name)), name), "internalId": "1"}}
        return {}

    def stream(self, run_id: str, body: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[run_id]
        part = body.get("files", {}).get("wandb-history.jsonl")
        if part:
            del run.history[part["offset"] :]
            run.history += [json.loads(line) for line in part["content"]]
        if body.get("complete"):
            run.exit_codes.append(body["exitcode"])
        return {}


def bucket(run: ReceivedRun | None, name: str | None) -> dict[str, Any] | None:
    if run is None:
        return None
    tail = json.dumps([json.dumps(line) for line in run.history[-1:]])
    project = {"id": "P", "name": "e", "internalId": "1", "entity": {"id": "E", "name": "team"}}
    return {
        "id": "R",
        "name": name,
        "displayName": name,
        "description": "",
        "state": "running",
        "config": json.dumps({key: {"value": value} for key, value in run.config.items()}),
        "systemMetrics": "{}",
        "summaryMetrics": json.dumps(run.history[-1]) if run.history else "{}",
        "historyTail": tail,
        "eventsTail": "[]",
        "historyLineCount": len(run.history),
        "eventsLineCount": 0,
        "logLineCount": 0,
        "tags": [],
        "notes": run.notes,
        "wandbConfig": json.dumps({"t": {}}),
        "sweepName": None,
        "project": project,
        "projectId": "1",
        "user": {"name": "ann", "username": "ann"},
        "createdAt": "2026-01-01T00:00:00",
        "heartbeatAt": "2026-01-01T00:00:00",
        "readOnly": False,
        "group": None,
        "jobType": None,
        "commit": None,
        "historyKeys": None,
    }


@contextmanager
def wandb_service(port: int = 0) -> Iterator[Received]:
    """Serves until the block ends."""
    received = Received()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            body = json.loads(data or b"{}")
            with lock:
                received.requests.append(f"{self.path} {data.decode()}")
                received.keys.add(self.headers.get("Authorization") or "")
                answer: dict[str, Any] = {}
                if self.path == "/graphql":
                    answer = {"data": received.answer(body["query"], body.get("variables") or {})}
                elif self.path.endswith("/file_stream"):
                    answer = received.stream(self.path.split("/")[-2], body)
            self.reply(answer)

        def do_GET(self) -> None:
            self.reply({})

        def reply(self, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    received.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
