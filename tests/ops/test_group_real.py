"""The real group: it comes up, starts again what dies, drives a flow, delivers what dead runs left, and ends without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.holder import this_process
from db.ledger import Ledger
from db.outbox import OutboxEntry
from flows.home import Home
from flows.prefect_server import WORK_POOL
from ops.group.members import DASHBOARD, KEEPER, MLFLOW, PREFECT, WORKER
from ops.tracking.mlflow_tracker import MlflowTracker
from tests.ops.group_tools import ANY, SECONDS, RealGroup, answers, kill, listening, wait_for
from tests.postgresql import start_server

pytestmark = pytest.mark.verify
MEMBERS = {PREFECT, WORKER, MLFLOW, DASHBOARD, KEEPER}
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


def test_ctrl_c_ends_a_group_that_came_up_whole(group: RealGroup) -> None:
    up = group.begin("up", *ANY, "-o", "json")
    assert up.stdout is not None
    told = json.loads(up.stdout.readline())
    assert told["state"] == "up"
    members = {member["name"]: member for member in told["members"]}
    assert set(members) == MEMBERS
    for name, path in (
        (PREFECT, "/api/health"),
        (PREFECT, "/"),
        (MLFLOW, "/health"),
        (MLFLOW, "/"),
        (DASHBOARD, "/health"),
    ):
        assert answers(members[name]["address"] + path), (name, path)
    assert answers(f"{members[DASHBOARD]['address']}/metrics")
    assert {address for _, address in listening(group.home)} == {"127.0.0.1"}

    second = group.begin("up", *ANY)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 2
    assert f"is up already, in the terminal of pid {up.pid}" in err
    assert members[PREFECT]["address"] in err

    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=SECONDS)
    assert up.returncode == 0, err
    assert "Traceback" not in err
    assert err.index("worker: ended") < err.index("prefect: ended")
    assert group.processes() == 0
    assert group.call("status", code=1)["state"] == "down"


def test_what_dies_is_started_again_and_a_killed_group_recovers(group: RealGroup) -> None:
    told = group.call("up", "--detach", *ANY)
    before = group.members()
    for name in MEMBERS:
        kill(before[name]["pid"])
    found = group.await_status(
        lambda status: status["state"] == "up" and all(member["restarts"] for member in status["members"])
    )
    after = {member["name"]: member for member in found["members"]}
    for name in MEMBERS:
        assert after[name]["pid"] != before[name]["pid"]
        assert after[name]["address"] == before[name]["address"]
        assert after[name]["last_death"] == "exited with code -9"
    kill(told["supervisor"])
    assert group.call("status", code=1)["state"] == "lost"
    again = group.call("up", "--detach", *ANY)
    assert again["supervisor"] != told["supervisor"]
    addresses = {member["name"]: member["address"] for member in again["members"]}
    assert addresses == {name: member["address"] for name, member in before.items()}
    assert group.call("down") == {"home": str(group.home.folder), "ended": True}
    assert group.processes() == 0
    assert group.call("down")["ended"] is False


def test_a_terminal_that_went_away_is_replaced_and_a_killed_supervisor_too(group: RealGroup) -> None:
    first = group.begin("up", *ANY, "-o", "json")
    assert first.stdout is not None
    told = json.loads(first.stdout.readline())
    kill(first.pid)
    first.communicate()
    second = group.begin("up", *ANY, "-o", "json")
    assert second.stdout is not None
    assert json.loads(second.stdout.readline())["supervisor"] == told["supervisor"]
    kill(told["supervisor"])
    found = group.await_status(lambda status: status["state"] == "up" and status["supervisor"] != told["supervisor"])
    assert {m["name"]: m["address"] for m in found["members"]} == {m["name"]: m["address"] for m in told["members"]}
    assert group.call("down")["ended"] is True
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 0
    assert "the supervisor was killed; a new one starts the members again" in err
    assert "the group was ended: told to stop" in err


def test_drivers_outlive_their_worker_and_end_in_order_with_the_group(group: RealGroup, tmp_path: Path) -> None:
    told = group.call("up", "--detach", *ANY)
    members = {member["name"]: member for member in told["members"]}
    (tmp_path / "deployed.py").write_text(FLOW)
    environment = {**os.environ, "PREFECT_API_URL": f"{members[PREFECT]['address']}/api", "PREFECT_HOME": str(tmp_path)}
    deploy = [sys.executable, "deployed.py", WORK_POOL]
    subprocess.run(deploy, cwd=tmp_path, env=environment, check=True, timeout=SECONDS, capture_output=True)
    said = tmp_path / "said"
    wait_for(said, "began")
    _, pid, home, tracking = said.read_text().split()
    assert (home, tracking) == (str(group.home.folder), members[MLFLOW]["address"])
    kill(members[WORKER]["pid"])
    group.await_status(lambda status: status["state"] == "up")
    os.kill(int(pid), 0)
    assert "ended" not in said.read_text()
    subprocess.run(deploy, cwd=tmp_path, env=environment, check=True, timeout=SECONDS, capture_output=True)
    wait_for(said, f"began {pid} {home} {tracking}\nbegan")
    group.call("down")
    assert said.read_text().count("ended in order") == 2, "one of the killed worker, one of its successor"


def test_rows_of_a_dead_run_reach_mlflow_by_the_groups_keeper(group: RealGroup) -> None:
    home = group.home
    home.folder.mkdir(parents=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 1).id
        fence = ledger.leases.acquire(run, this_process(), 60)
        rows = [OutboxEntry(f"{run}/run", "run", {"experiment": "e", "name": run}, 1)]
        rows.append(OutboxEntry(f"{run}/spec", "artifact", {"name": "spec.json", "text": "{}"}, 2))
        ledger.outbox.enqueue(fence, rows)
        ledger.leases.release(fence)
    told = group.call("up", "--detach", *ANY)
    group.await_status(lambda status: not status["undelivered"] and (home.artifacts).exists())
    with Ledger.open(home.ledger) as ledger:
        assert ledger.outbox.counts(run) == (0, 2)
        tracked = ledger.runs.find(run).mlflow_run_id
    addresses = {member["name"]: member["address"] for member in told["members"]}
    for store in (addresses[MLFLOW], home.tracking_uri):
        with MlflowTracker(store, home.artifacts).client() as client:
            assert client.get_run(tracked).info.run_name == run
            assert [file.path for file in client.list_artifacts(tracked)] == ["spec.json"]


def test_a_member_that_cannot_live_is_given_up_with_its_reason(group: RealGroup) -> None:
    """MLflow's database is a folder: the server ends again and again, and the group with the end of its log."""
    (group.home.folder / "mlflow.db").mkdir(parents=True)
    up = group.begin("up", *ANY)
    _, err = up.communicate(timeout=SECONDS)
    assert up.returncode == 1
    assert "starting it again (5 of 5)" in err
    assert "gave up after 6 deaths" in err
    assert "unable to open database file" in err
    assert group.processes() == 0


def test_a_postgresql_without_trigrams_is_refused_and_one_holds_ledger_and_mlflow(home: Home, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    group = RealGroup(home, {"PREFECT_API_DATABASE_CONNECTION_URL": server.dsn})
    try:
        up = group.begin("up", *ANY)
        _, err = up.communicate(timeout=SECONDS)
        assert up.returncode == 2
        assert "PREFECT_API_DATABASE_CONNECTION_URL: that server has no extension pg_trgm" in err
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
        path for path in home.group.rglob("*") if path.is_file() and server.dsn in path.read_text(errors="replace")
    ]
