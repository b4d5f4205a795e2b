"""The tracker and MLflow's own server, which stores artifacts itself. Its start takes about fifteen seconds."""

from __future__ import annotations

import json
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

from flows.run.pages import Pages
from ops.integrations.mlflow_details import NOTE_TAG, TABLES_TAG
from ops.integrations.mlflow_tracker import MlflowTracker
from tests.browser.dashboard import Outside, started_chromium
from tests.browser.install import find_chromium
from tests.ops.integrations.test_mlflow_tracker import body_of, created, points, row

pytestmark = pytest.mark.verify
START_SECONDS = 120.0
MEASURED = {"metrics": {"reward/mean": 0.5}, "measured_at": 1_700_000_000_123}


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


def test_a_server_stores_data_files_models_and_ends_once(server: str, tmp_path: Path) -> None:
    """Everything that makes a run readable arrives once: data, note, files, checkpoints as logged models, and its status."""
    home = tmp_path / "home"
    run = created(MlflowTracker(server, home / "artifacts"), "readable")
    (home / "toy-1" / "reports").mkdir(parents=True)
    (home / "toy-1" / "reports" / "samples.json").write_text(json.dumps({"columns": ["prompt"], "data": [["2 + 2"]]}))
    (home / "toy-1" / "reports" / "curve.png").write_bytes(b"png")
    facts = {"name": "toy train", "digest": "ab" * 32, "path": "inputs/train.jsonl", "rows": 3, "use": "training"}
    rows = [
        row("datasets", {"datasets": [facts, {**facts, "name": "toy held out", "use": "evaluation"}]}, run),
        row("note", {"text": "what it learns"}, run),
        row("file", {"name": "samples.json", "path": "reports/samples.json", "table": True}, run, "f1"),
        row("file", {"name": "curve.png", "path": "reports/curve.png"}, run, "f2"),
        row("metrics", {"branch": 0, "iteration": 0, "metrics": {"reward/mean": 0.5}}, run),
        row("checkpoint", {**body_of("r0", 0, "kept"), "model": "readable"} | MEASURED, run, "s0"),
        row("status", {"status": "FINISHED"}, run),
    ]
    for _ in range(3):
        MlflowTracker(server, home / "artifacts").deliver(rows)
    with MlflowTracker(server, home / "artifacts").client() as client:
        tracked = client.get_run(run)
        (version,) = client.search_model_versions("name = 'readable'")
        model = client.get_logged_model(version.tags["yatt.model_id"])
        names = sorted(artifact.path for artifact in client.list_artifacts(run))
    assert sorted(each.dataset.name for each in tracked.inputs.dataset_inputs) == ["toy held out", "toy train"]
    assert tracked.data.tags[NOTE_TAG].count("what it learns") == 1
    assert json.loads(tracked.data.tags[TABLES_TAG]) == [{"path": "samples.json", "type": "table"}]
    assert names == ["curve.png", "samples.json"]
    assert [(each.key, each.value, each.step) for each in model.metrics] == [("reward/mean", 0.5, 0)]
    assert (tracked.info.status, tracked.info.end_time, model.status) == ("FINISHED", 1_700_000_000_123, "READY")
    assert [path.read_bytes() for path in (tmp_path / "served").rglob("curve.png")] == [b"png"]
    for status in ("FAILED", "KILLED", "RUNNING", "SCHEDULED"):
        tracker = MlflowTracker(server, home / "artifacts")
        tracker.deliver([row("status", {"status": status}, run)])
        with tracker.client() as client:
            assert client.get_run(run).info.status == status


def test_a_link_opens_the_run_among_training_runs(server: str, tmp_path: Path) -> None:
    """MLflow forwards other addresses to its pages for GenAI, whatever the experiment says."""
    browser = find_chromium()
    if browser is None:
        pytest.skip("NO BROWSER: MLflow's pages are not opened")
    item = row("run", {"experiment": "linked", "name": "toy-1", "owner": "a ledger"})
    place = MlflowTracker(server, tmp_path / "unused").deliver([item])[item.key]
    outside = Outside()
    try:
        with started_chromium(browser, outside) as chromium:
            page = chromium.new_page()
            page.goto(Pages(mlflow=server).in_mlflow(place))
            page.get_by_text("About this run").wait_for(timeout=120_000)
            shown = page.inner_text("body")
    finally:
        outside.close()
    assert "Model registry" in shown and "Playground" not in shown


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
