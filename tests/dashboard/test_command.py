"""`yatt dashboard`: a separate server, on loopback only, that shuts down cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.conftest import home as home
from tests.ops.conftest import yatt as yatt
from tests.ops.seeding import seed_run

ROOT = Path(__file__).parents[2]


def test_a_taken_port_is_reported(yatt: Yatt) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = yatt("dashboard", "--port", str(port))
    assert (answer.code, answer.out) == (2, "")
    assert f"--port {port}: " in answer.err and "Address already in use" in answer.err


@pytest.mark.verify
def test_it_serves_until_ctrl_c_and_listens_on_loopback_only(home: Home) -> None:
    seed_run(home)
    command = [
        sys.executable,
        "-m",
        "ops.cli.main",
        "--home",
        str(home.folder),
        "dashboard",
        "--port",
        "0",
        "-o",
        "json",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            with httpx.Client(base_url=address, timeout=60) as client:
                assert client.get("/health").json() == {"status": "ok"}
                assert "server" not in client.get("/api/v1/runs").headers
                assert client.get("/api/v1/runs", headers={"X-Forwarded-Host": "evil"}).status_code == 200
                assert client.get("/api/v1/runs", headers={"Host": "evil.example"}).status_code == 421
                listening = [
                    c.laddr for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN
                ]
                assert [(place.ip, place.port) for place in listening] == [("127.0.0.1", urlsplit(address).port)]
                with client.stream("GET", "/api/v1/runs/toy-1/live") as live:
                    assert next(live.iter_lines()).startswith("id: ")
                    process.send_signal(signal.SIGINT)
                    assert process.wait(30) == 0
        finally:
            process.kill()
