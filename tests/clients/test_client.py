"""The HTTP client: generated from the present document, reads and changes runs through the real dashboard."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvicorn
from yatt_client import Client, errors
from yatt_client.client import events

from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import Role
from ops.people.tokens import TokenStore
from tests.ops.seeding import seed_run
from tests.services import ROOT
from tests.waiting import wait_until

FOLDER = ROOT / "clients" / "python"


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Client]]:
    """Yields a function that connects a client to a dashboard over a home with one stopped run."""
    home = Home(tmp_path_factory.mktemp("client") / "runs")
    seed_run(home)
    token = TokenStore(home.folder).create("alice")
    server = uvicorn.Server(uvicorn.Config(create_app(home), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 30)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield lambda known=True: Client(address, token if known else None)
    server.should_exit = True
    thread.join(30)


def test_the_generated_files_are_those_of_the_present_document() -> None:
    made = runpy.run_path(str(FOLDER / "generate.py"))["generated"]()
    for name, text in made.items():
        assert (FOLDER / "yatt_client" / name).read_text() == text, f"run clients/python/generate.py: {name} differs"


def test_runs_are_listed_and_read(connect: Callable[..., Client]) -> None:
    with connect() as client:
        assert [run["id"] for run in client.list_runs(state="stopped", limit=5)["runs"]] == ["toy-1"]
        assert client.show_run("toy-1")["run"]["iteration"] == 2
        (series,) = client.read_series("toy-1", key=["reward/mean"])["series"]
        assert series["key"] == "reward/mean"
        assert client.list_rollouts("toy-1", 2, where=["reward>=0"])["samples"]
        assert [line["state"] for line in client.follow("toy-1")] == ["stopped"]


def test_refusals_are_errors_of_a_class(connect: Callable[..., Client]) -> None:
    with connect() as client:
        with pytest.raises(errors.NotFound, match="toy-9"):
            client.show_run("toy-9")
        with pytest.raises(errors.ApiError, match="no driver"):
            client.stop("toy-1", reason="enough")
        with pytest.raises(errors.InvalidRequest) as caught:
            client.start(spec="name: toy\niteratons: 3\n")
        assert any("did you mean" in " ".join(each.values()) for each in caught.value.errors)
        with pytest.raises(errors.InvalidRequest):
            client.list_runs(limit=0)
    with connect(False) as reader, pytest.raises(errors.NotAllowed, match="token"):
        reader.rollback("toy-1", to=1)
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(errors.Unavailable):
        nobody.list_runs()


def test_events_are_read_from_a_stream() -> None:
    lines = ["id: 3", "event: run", 'data: {"id": "toy-1"}', "", ": nothing new", "", "id: 4", "event: end", "data: {}"]
    assert list(events(lines)) == [("run", {"id": "toy-1"}), ("", None), ("end", {})]


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_run_is_created_followed_and_stopped_through_a_real_dashboard(
    tmp_path: Path, service_environment: Mapping[str, str]
) -> None:
    home = Home(tmp_path / "runs")
    home.folder.mkdir()
    tokens = TokenStore(home.folder)
    tokens.users.add("alice", Role.OPERATOR)
    tokens.users.set_author("alice", True)  # the spec that is sent names a task and a reward function
    token = tokens.create("alice", Role.OPERATOR)
    command = [sys.executable, "-m", "yatt", "--home", str(home.folder), "dashboard", "--port", "0"]
    log = tmp_path / "dashboard.log"
    with log.open("w") as output:
        served = subprocess.Popen(command, env={**os.environ, **service_environment}, stdout=output, stderr=output)
    try:
        found: list[str] = []
        wait_until(lambda: found.extend(re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())) or found, 60)
        spec = (ROOT / "configs" / "virtual.yaml").read_text().replace("iterations: 8", "iterations: 100000")
        with Client(found[0], token) as client:
            wait_until(lambda: _answers(client), 30)
            run = client.start(spec=spec + "\ntracking: {enabled: false}\n", reason="a test")["run"]["id"]
            seen = []
            asked = False
            for line in client.follow(run):
                seen.append(line["iteration"])
                if line["iteration"] >= 1 and not asked:
                    asked = client.stop(run, reason="enough")["action"] == "stop"
            assert client.show_run(run)["run"]["state"] == "stopped" and seen == sorted(seen) and asked
    finally:
        served.terminate()
        served.wait(60)


def _answers(client: Client) -> bool:
    try:
        return client.list_runs()["total"] == 0
    except errors.Unavailable:
        return False
