"""Actions of a token's holder on a run over HTTP; the audit chain names the holder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.waits import WaitRow
from flows.run.home import Home
from flows.run.lease import KEEPER
from ops.dashboard.app import create_app
from ops.driver_process import OF_THE_GROUP
from ops.people.roles import Role
from ops.terminal.people import acting_name
from ops.web.context import Context
from ops.web.driving import RESUME_LOG, last_words
from tests.dashboard.conftest import ORIGIN, Ask
from tests.ops.cli.test_branches import seed_checkpoint
from yatt_core.inputs.manifest import INPUTS

ROOT = Path(__file__).parents[2]


def test_stop_asks_the_driver_and_records_the_caller(ask: Ask, served: Context) -> None:
    answer = ask("toy-2/stop", reason="the power goes off", within_seconds=60)
    assert answer.status_code == 200
    assert (answer.json()["by"], answer.json()["run"]["desired_state"]) == ("alice", "stop")
    (link,) = served.ledger.browse.events("toy-2", 1)
    assert link.body["reason"] == "alice, through the dashboard: the power goes off"
    assert 0 < (served.ledger.runs.stop_deadline("toy-2") or 0) <= 60
    refused = ask("toy-1/stop")
    assert refused.status_code == 409 and refused.json()["detail"].startswith("run toy-1: ")


def test_a_checkpoint_is_asked_of_the_driver(ask: Ask, served: Context) -> None:
    answer = ask("toy-2/checkpoint", reason="before the upgrade")
    assert answer.status_code == 200
    request = served.ledger.checkpoint_requests.pending("toy-2")
    assert request is not None and request.reason == "alice, through the dashboard: before the upgrade"
    refused = ask("toy-1/checkpoint")
    assert refused.status_code == 409 and "has no driver" in refused.json()["detail"]


def test_a_run_that_waits_is_asked_to_try_at_once(ask: Ask, served: Context) -> None:
    refused = ask("toy-2/try-now")
    assert refused.status_code == 409 and "waits for nothing outside" in refused.json()["detail"]
    fence = Fence.of_run("toy-2", 1)
    served.ledger.waits.record(fence, WaitRow("toy-2", "judge 'kind'", "status 503", 1, 2, 1))
    assert ask("toy-2/try-now").status_code == 200
    assert served.ledger.waits.take(fence)


def test_a_driven_run_is_neither_resumed_nor_changed(ask: Ask, served: Context) -> None:
    head = served.ledger.events.head("toy-2")
    for path, body in (("resume", {}), ("retry", {"iteration": 3, "phase": "collect"}), ("rollback", {"to": 1})):
        answer = ask(f"toy-2/{path}", **body)
        assert answer.status_code == 409 and "is held by driver of toy-2" in answer.json()["detail"]
    assert served.ledger.events.head("toy-2") == head


def test_rollback_opens_a_branch_and_records_the_caller(ask: Ask, served: Context, home: Home) -> None:
    (home.run_folder("toy-1") / INPUTS).mkdir()
    seed_checkpoint(home, "toy-1", 1)
    refused = ask("toy-1/rollback", to=9)
    assert refused.status_code == 409 and "not committed" in refused.json()["detail"]
    answer = ask("toy-1/rollback", to=1, reason="it hacks the reward")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["run"]["branch"], answer.json()["run"]["iteration"]) == (1, 1)
    links = served.ledger.browse.events("toy-1", 10, kinds=("branch",))
    assert links[0].body["reason"] == "alice, through the dashboard: it hacks the reward"


def test_retry_of_a_phase_that_has_not_failed_is_refused(ask: Ask, home: Home) -> None:
    answer = ask("toy-1/retry", iteration=3, phase="collect")
    assert answer.status_code == 409 and "collect of iteration 3 " in answer.json()["detail"]
    assert not (home.run_folder("toy-1") / RESUME_LOG).exists()


def test_an_invalid_request_is_refused(ask: Ask, served: Context) -> None:
    unclear: list[tuple[str, dict[str, Any]]] = [
        ("stop", {"reson": "x"}),
        ("stop", {"reason": "x" * 501}),
        ("stop", {"reason": "two\nlines"}),
        ("stop", {"within_seconds": -1}),
        ("stop", {"within_seconds": "soon"}),
        ("rollback", {}),
        ("rollback", {"to": 10**12}),
        ("retry", {"iteration": 1, "phase": "../collect"}),
        ("resume", {"accept_drift": "perhaps"}),
    ]
    for path, body in unclear:
        answer = ask(f"toy-2/{path}", **body)
        assert answer.status_code == 422, (path, body)
        assert answer.json()["errors"][0]["where"].startswith("body")
        assert "pattern" not in answer.text, (path, body)
    told = ask("toy-2/retry", iteration=1, phase="../collect", reason="two\nlines").json()["errors"]
    assert [each["where"] for each in told] == ["body.reason", "body.phase"]
    assert "control characters" in told[0]["what"] and "such as collect" in told[1]["what"]
    assert served.ledger.runs.desired_state("toy-2") == "run"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"within_seconds": NaN}', 422, "finite number"),
        (b'{"reason": "\xff"}', 400, ""),
        (b"[" * 10_000, 400, ""),
    ],
)
def test_a_malformed_body_is_refused(
    client: TestClient, served: Context, alice: dict[str, str], body: bytes, status: int, says: str
) -> None:
    headers = alice | {"Content-Type": "application/json"}
    answer = client.post("/api/v1/runs/toy-2/stop", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json" and says in answer.json()["detail"]
    assert served.ledger.runs.desired_state("toy-2") == "run"


def test_a_run_whose_folder_is_gone_is_resumed(
    ask: Ask, served: Context, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object store may hold the folder's contents."""
    monkeypatch.setattr("ops.driver_process.sys.executable", "/bin/true")
    shutil.rmtree(home.run_folder("toy-1"))
    assert ask("toy-1/resume").status_code == 202
    assert (home.run_folder("toy-1") / RESUME_LOG).exists()
    assert len(served.ledger.events.of_kind("toy-1", "resume_requested")) == 1


def test_a_run_that_the_keeper_holds_is_resumed(ask: Ask, served: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.driver_process.sys.executable", "/bin/true")
    served.ledger.leases.acquire("toy-1", this_process(KEEPER), 60)
    assert ask("toy-1/resume").status_code == 202


def test_a_second_resume_waits_for_the_first_driver(
    ask: Ask, served: Context, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the driver starts it holds no lease, and a second one would end as soon as it requested the lease."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    (home.run_folder("toy-1") / INPUTS).mkdir()
    seed_checkpoint(home, "toy-1", 1)
    monkeypatch.setattr("ops.driver_process.sys.executable", str(slow))
    assert ask("toy-1/resume").status_code == 202
    started = served.drivers.newest["toy-1"].process
    try:
        for path, body in (("resume", {}), ("rollback", {"to": 1})):
            refused = ask(f"toy-1/{path}", **body)
            assert refused.status_code == 409, path
            detail = refused.json()["detail"]
            assert all(fact in detail for fact in ("run toy-1: ", f"pid {started.pid}", RESUME_LOG))
    finally:
        started.kill()
        started.wait(30)
    assert len(served.ledger.events.of_kind("toy-1", "resume_requested")) == 1
    assert ask("toy-1/rollback", to=1).status_code == 200


def test_a_resume_without_a_writable_log_is_not_recorded(ask: Ask, served: Context, home: Home) -> None:
    (home.run_folder("toy-1") / RESUME_LOG).mkdir()
    with pytest.raises(IsADirectoryError):
        ask("toy-1/resume")
    assert served.ledger.events.of_kind("toy-1", "resume_requested") == []


def test_the_last_log_lines_of_a_driver_contain_no_secret(tmp_path: Path) -> None:
    log = tmp_path / RESUME_LOG
    log.write_text("x" * 9000 + "\nerror: cannot reach postgresql://me:hunter2@host/ledger\n\n")
    assert last_words(log) == "error: cannot reach postgresql://me:***@host/ledger"
    log.write_text("")
    assert last_words(log) == ""


def _wait(client: TestClient, run: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        line: dict[str, Any] = client.get(f"/api/v1/runs/{run}").json()["run"]
        if wanted(line):
            return line
        time.sleep(0.3)
    raise AssertionError(f"{run} did not reach that state: {line}")


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_real_run_is_stopped_and_resumed_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`yatt train` runs as a separate process; the resumed driver is not a child of the dashboard's service."""
    home = Home(tmp_path / "runs")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "YATT_HOME": str(home.folder)}
    with TestClient(create_app(home), base_url=ORIGIN) as client:
        headers = {"Authorization": f"Bearer {client.app.state.context.tokens.create('alice', Role.ADMIN)}"}  # type: ignore[attr-defined]
        changes = ["--set", "iterations=400", "--set", "tracking.enabled=false"]
        command = [sys.executable, "-m", "ops.cli.main", "train", str(ROOT / "configs/virtual.yaml"), *changes]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as driver:
            try:
                while not client.get("/api/v1/runs").json()["runs"]:
                    time.sleep(0.3)
                run = client.get("/api/v1/runs").json()["runs"][0]["id"]
                _wait(client, run, lambda line: line["iteration"] >= 1)
                assert client.post(f"/api/v1/runs/{run}/stop", json={}, headers=headers).status_code == 200
                stopped = _wait(client, run, lambda line: line["driver"] == "nobody")
            finally:
                driver.wait(60)
        assert stopped["state"] == "stopped"
        for name in OF_THE_GROUP:
            monkeypatch.setenv(name, "a group:dashboard:")
        answer = client.post(f"/api/v1/runs/{run}/resume", json={"reason": "go on"}, headers=headers)
        assert answer.status_code == 202
        (pid,) = re.findall(r"pid (\d+)", answer.json()["detail"])
        given = Path(f"/proc/{pid}/environ").read_bytes()
        assert not any(name.encode() in given for name in OF_THE_GROUP)
        further = _wait(
            client, run, lambda line: line["driver"] == "driven" and line["iteration"] > stopped["iteration"]
        )
        assert client.post(f"/api/v1/runs/{run}/resume", json={}, headers=headers).status_code == 409
        client.post(f"/api/v1/runs/{run}/stop", json={}, headers=headers)
        ended = _wait(client, run, lambda line: line["driver"] == "nobody")
        assert ended["iteration"] >= further["iteration"]
        kinds = [link["kind"] for link in client.get(f"/api/v1/runs/{run}/events?limit=500").json()]
        assert "resume_requested" in kinds and "resume_failed" not in kinds
    with Ledger.open(home.ledger) as ledger:
        assert ledger.events.verify(run) is None
        requested = ledger.events.of_kind(run, "resume_requested")
        assert [(link.body["by"], link.body["reason"]) for link in requested] == [
            (acting_name(), ""),
            ("alice", "go on"),
        ]


@pytest.mark.verify
def test_a_driver_that_cannot_start_records_why_in_the_audit_chain(
    ask: Ask, client: TestClient, served: Context
) -> None:
    """The run's spec is invalid."""
    with served.ledger._database.write() as connection:
        connection.exec_driver_sql("UPDATE spec_revision SET spec = '{\"name\": 1}' WHERE run = 'toy-1'")
    assert ask("toy-1/resume").status_code == 202
    deadline = time.monotonic() + 100
    while not (found := served.ledger.events.of_kind("toy-1", "resume_failed")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert found[0].body["exit_code"] == 2 and found[0].body["by"] == "alice"
    assert found[0].body["said"].startswith("the spec of run toy-1: ")
