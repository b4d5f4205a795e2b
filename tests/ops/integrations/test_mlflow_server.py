"""The tracker and MLflow's own server, which stores artifacts itself. Its start takes about fifteen seconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.integrations.mlflow_tracker import MlflowTracker
from tests.ops.integrations.test_mlflow_tracker import body_of, created, points, row

pytestmark = pytest.mark.verify
START_SECONDS = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    stores = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path / 'mlflow.db'}",
        "--artifacts-destination",
        str(tmp_path / "served"),
    ]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        *stores,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=tmp_path, start_new_session=True
        )
    try:
        await_health(f"{address}/health", process)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def await_health(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{address}: the server did not start")


def test_a_server_registers_checkpoints_and_moves_aliases_once(server: str, tmp_path: Path) -> None:
    run = created(MlflowTracker(server, tmp_path / "unused"), "registry")
    said = {"alias": "champion", "by": "ann", "why": "why", "at": 1}
    rows = [
        row("checkpoint", body_of("m0", 0, "kept"), run, "s0"),
        row("checkpoint", body_of("m2", 2, "kept"), run, "s2"),
        row("alias", {**body_of("m0", 0, "kept"), **said, "number": 1}, run, "a1"),
        row("alias", {**body_of("m2", 2, "kept"), **said, "number": 2}, run, "a2"),
        row("checkpoint", body_of("m0", 0, "pruned"), run, "s0/pruned"),
    ]
    for _ in range(3):
        MlflowTracker(server, tmp_path / "unused").deliver(rows)
    with MlflowTracker(server, tmp_path / "unused").client() as client:
        found = client.search_model_versions("name = 'toy'")
        champion = client.get_model_version_by_alias("toy", "champion")
        model = client.get_logged_model(champion.tags["yatt.model_id"])
    assert {version.tags["yatt.iteration"]: version.tags["yatt.state"] for version in found} == {
        "0": "pruned",
        "2": "kept",
    }
    assert len(found) == 2
    assert (champion.tags["yatt.iteration"], champion.run_id, model.status) == ("2", run, "READY")
    assert not (tmp_path / "unused").exists()


def test_a_server_stores_everything_once(server: str, tmp_path: Path) -> None:
    run = created(MlflowTracker(server, tmp_path / "unused"), "served")
    rows = [
        row("params", {"seed": "0"}, run),
        row("tags", {"yatt.run": "toy-1"}, run),
        row("artifact", {"name": "spec.json", "text": "{}"}, run),
        row("metrics", {"branch": 0, "iteration": 3, "metrics": {"reward/mean": 0.5}}, run),
    ]
    for _ in range(3):
        tracker = MlflowTracker(server, tmp_path / "unused")
        assert created(tracker, "served") == run
        tracker.deliver(rows)
    assert points(tracker, run, "reward/mean") == [(3, 1_700_000_000_123, 0.5)]
    assert [path.read_text() for path in (tmp_path / "served").rglob("spec.json")] == ["{}"]
    assert not (tmp_path / "unused").exists()
