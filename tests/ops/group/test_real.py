"""The real group: starts, restarts dead members, drives a flow, delivers rows of dead runs, ends without a trace."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from flows.prefect_io.prefect_server import PASSWORD_VARIABLE, WORK_POOL
from flows.run.home import Home
from ops.group.members import CLUSTERS, DASHBOARD, KEEPER, MLFLOW, PREFECT, QUEUE, WORKER
from ops.integrations.mlflow_tracker import MlflowTracker
from tests.ops.group.group_tools import ANY, SECONDS, RealGroup, answers, kill, listening, wait_for
from tests.postgresql import start_server

pytestmark = pytest.mark.verify
MEMBERS = {PREFECT, WORKER, MLFLOW, DASHBOARD, KEEPER, QUEUE, CLUSTERS}
FLOW = """
import os, signal, sys, time
from pathlib import Path
from prefect import flow

HERE = Path(__file__).parent

def say(text):
    with (HERE / "said").open("a") as stream:
        stream.write(text + "\\n")

@flow
def long_lived():
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    say(f"began {os.getpid()} {os.environ['YATT_HOME']} {os.environ['MLFLOW_TRACKING_URI']}")
    while not asked:
        time.sleep(0.1)
    time.sleep(1.0)
    say("ended in order")

if __name__ == "__main__":
    deployed = long_lived.from_source(source=str(HERE), entrypoint="deployed.py:long_lived")
    deployed.deploy(name="test", work_pool_name=sys.argv[1], print_next_steps=False, ignore_warnings=True)
    from prefect.deployments import run_deployment
    run_deployment("long-lived/test", timeout=0)
"""


@pytest.fixture
def group(home: Home) -> Iterator[RealGroup]:
    group = RealGroup(home, {"PREFECT_WORKER_QUERY_SECONDS": "1"})
    yield group
    group.close()
    assert group.processes() == 0


def started(group: RealGroup) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Starts a group in a terminal; returns its process and its status once it is up."""
    up = group.begin("up", *ANY, "-o", "json")
    assert up.stdout is not None
    line = up.stdout.readline()
    assert line, up.communicate()[1]
    told: dict[str, Any] = json.loads(line)
    assert told["state"] == "up"
    return up, told


def by_name(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the members of a status by name."""
    return {member["name"]: member for member in told["members"]}


def addresses(told: dict[str, Any]) -> dict[str, str]:
    """Returns the addresses of the members of a status."""
    return {member["name"]: member["address"] for member in told["members"]}


def test_a_group_starts_completely_survives_kills_and_ends_with_ctrl_c(group: RealGroup) -> None:
    up, told = started(group)
    members = by_name(told)
    assert set(members) == MEMBERS
    for name, path in (
        (PREFECT, "/api/health"),
        (PREFECT, "/"),
        (MLFLOW, "/health"),
        (MLFLOW, "/"),
        (DASHBOARD, "/metrics"),
    ):
        assert answers(members[name]["address"] + path), (name, path)
    assert {address for _, address in listening(group.home)} == {"127.0.0.1"}
    page = httpx.get(f"{members[DASHBOARD]['address']}/deployments", timeout=SECONDS).text
    assert "does not answer" not in page and "deploy" in page
    refuse_strangers(members[PREFECT]["address"], members[MLFLOW]["address"], password_of(told))

    second = group.begin("up", *ANY)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 2
    assert f"in the terminal of pid {up.pid}" in err
    assert members[PREFECT]["address"] in err

    kill(up.pid)
    up.communicate()
    up, taken_over = started(group)
    assert taken_over["supervisor"] == told["supervisor"], "the group continues without its terminal"

    kill(told["supervisor"])
    replaced = group.await_status(lambda status: status["state"] == "up" and status["supervisor"] != told["supervisor"])
    assert addresses(replaced) == addresses(told)

    kill(up.pid)
    up.communicate()
    kill(replaced["supervisor"])
    assert group.call("status", code=1)["state"] == "lost"
    up, again = started(group)
    assert again["supervisor"] != replaced["supervisor"]
    assert addresses(again) == addresses(told)

    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=SECONDS)
    assert up.returncode == 0, err
    assert "Traceback" not in err
    assert err.index("worker: ended") < err.index("prefect: ended")
    assert group.processes() == 0
    assert group.call("status", code=1)["state"] == "down"
    assert group.call("down")["ended"] is False


def password_of(told: dict[str, Any]) -> str:
    """Returns the password of the group's Prefect."""
    return Path(told["password_file"]).read_text().strip()


def refuse_strangers(prefect: str, mlflow: str, password: str) -> None:
    """Checks that requests of another user, or of a foreign page in a local browser, are refused."""
    evil = {"Origin": "http://evil.example"}
    known = tuple(password.split(":", 1))
    for path in ("admin/version", "csrf-token?client=evil"):
        assert httpx.get(f"{prefect}/api/{path}").status_code == 401, (
            "nothing without the password, and so no token either"
        )
    made = httpx.post(f"{prefect}/api/flows/", json={"name": "evil"}, headers=evil, auth=known)
    assert made.status_code == 403, "changes need a CSRF token"
    read = httpx.get(f"{prefect}/api/admin/version", headers=evil, auth=known)
    assert "access-control-allow-origin" not in read.headers
    rebound = httpx.get(f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": "evil.example"})
    assert rebound.status_code == 403


def test_dead_members_restart_dead_runs_are_delivered_and_drivers_survive(group: RealGroup, tmp_path: Path) -> None:
    home = group.home
    run = run_with_undelivered_rows(home)
    told = group.call("up", "--detach", *ANY)
    before = by_name(told)

    group.await_status(lambda status: delivered(home, run))
    with Ledger.open(home.ledger) as ledger:
        tracked = ledger.runs.find(run).mlflow_run_id
    for store in (before[MLFLOW]["address"], home.tracking_uri):
        with MlflowTracker(store, home.artifacts).client() as client:
            assert client.get_run(tracked).info.run_name == run
            assert [file.path for file in client.list_artifacts(tracked)] == ["spec.json"]

    (tmp_path / "deployed.py").write_text(FLOW)
    server = {"PREFECT_API_URL": f"{before[PREFECT]['address']}/api", PASSWORD_VARIABLE: password_of(told)}
    environment = {**os.environ, **server, "PREFECT_HOME": str(tmp_path)}
    deploy = [sys.executable, "deployed.py", WORK_POOL]
    subprocess.run(deploy, cwd=tmp_path, env=environment, check=True, timeout=SECONDS, capture_output=True)
    said = tmp_path / "said"
    wait_for(said, "began")
    _, pid, at_home, tracking = said.read_text().split()
    assert (at_home, tracking) == (str(home.folder), before[MLFLOW]["address"])

    for name in MEMBERS:
        kill(before[name]["pid"])
    found = group.await_status(
        lambda status: status["state"] == "up" and all(member["restarts"] for member in status["members"])
    )
    after = by_name(found)
    for name in MEMBERS:
        assert after[name]["pid"] != before[name]["pid"]
        assert after[name]["last_death"] == "exited with code -9"
    assert addresses(found) == addresses(told)

    os.kill(int(pid), 0)
    assert "ended" not in said.read_text(), "the driver outlives its worker"
    subprocess.run(deploy, cwd=tmp_path, env=environment, check=True, timeout=SECONDS, capture_output=True)
    wait_for(said, f"began {pid} {at_home} {tracking}\nbegan")
    assert group.call("down") == {"home": str(home.folder), "ended": True}
    assert said.read_text().count("ended in order") == 2, "one of the killed worker, one of its successor"
    assert group.processes() == 0


def run_with_undelivered_rows(home: Home) -> str:
    """Creates a run whose driver has died and whose rows are not delivered."""
    home.folder.mkdir(parents=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 1).id
        fence = ledger.leases.acquire(run, this_process(), 60)
        rows = [OutboxEntry(f"{run}/run", "run", {"experiment": "e", "name": run}, 1)]
        rows.append(OutboxEntry(f"{run}/spec", "artifact", {"name": "spec.json", "text": "{}"}, 2))
        ledger.outbox.enqueue(fence, rows)
        ledger.leases.release(fence)
    return run


def delivered(home: Home, run: str) -> bool:
    """Returns True if a run has no rows left to deliver."""
    with Ledger.open(home.ledger) as ledger:
        return ledger.outbox.counts(run)[0] == 0


def test_a_member_that_keeps_dying_is_given_up_with_its_reason(group: RealGroup) -> None:
    """MLflow does not know its database's version and exits repeatedly; the group ends and reports the end of its log."""
    group.home.folder.mkdir(parents=True)
    with closing(sqlite3.connect(group.home.folder / "mlflow.db")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('ffffffffffff')")
        connection.commit()
    up = group.begin("up", *ANY)
    _, err = up.communicate(timeout=SECONDS)
    assert up.returncode == 1
    assert "(5 of 5)" in err
    assert "gave up after 6 deaths" in err
    assert "ffffffffffff" in err
    assert group.processes() == 0


def test_a_postgresql_needs_trigrams_and_can_hold_ledger_and_mlflow(home: Home, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    group = RealGroup(home, {"PREFECT_API_DATABASE_CONNECTION_URL": server.dsn})
    try:
        up = group.begin("up", *ANY)
        _, err = up.communicate(timeout=SECONDS)
        assert up.returncode == 2
        assert "PREFECT_API_DATABASE_CONNECTION_URL: " in err and "pg_trgm" in err
        group.close()
        stores = {"YATT_LEDGER": server.create("ledger"), "MLFLOW_BACKEND_STORE_URI": server.create("mlflow")}
        group = RealGroup(home, stores)
        assert group.call("up", "--detach", *ANY)["state"] == "up"
        assert not (home.folder / "ledger.db").exists()
        assert not (home.folder / "mlflow.db").exists()
        group.call("down")
    finally:
        group.close()
        server.close()
    assert not [
        path
        for path in home.group.rglob("*")
        if path.is_file() and str(server._sockets) in path.read_text(errors="replace")
    ]
