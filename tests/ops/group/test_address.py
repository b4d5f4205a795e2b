"""Which Prefect server runs and commands use: one that the environment names, or that of a group which is really up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.prefect_io.prefect_server import PREFECT_VARIABLE, SharedServer
from flows.run.home import Home
from ops.group import address
from ops.group.address import server_of_runs, shared_server
from ops.group.members import PREFECT, Ports
from ops.group.password import own_password, settle_password
from ops.group.record import GroupRecord, write_record
from tests.own_time import replace_time
from tests.supervisor.support import script_service
from tests.waiting import wait_until
from yatt_core.supervisor.client import current_state, ensure_supervisor, stop_supervisor, wait_ready
from yatt_core.supervisor.process import ProcessIdentity
from yatt_core.supervisor.runner import free_port
from yatt_core.supervisor.services import ServiceState

ANSWERS = """
import sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = HTTPServer(("127.0.0.1", {port}), Health)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


@pytest.fixture
def ports(home: Home) -> Iterator[Ports]:
    yield Ports(free_port(set()), 1, 2, 3)
    stop_supervisor(home.group, 0.0)


def group(home: Home, ports: Ports, tmp_path: Path, code: str, holder: ProcessIdentity | None = None) -> None:
    """Starts a supervisor with one member, and records it as the home's group."""
    settle_password(home)
    write_record(home.group, GroupRecord(holder, ports, time.time()))
    ensure_supervisor(home.group, [script_service(tmp_path, code.format(port=ports.prefect), name=PREFECT)], None)


def found(home: Home) -> tuple[SharedServer | None, list[str]]:
    said = list[str]()
    return server_of_runs(home)(said.append), said


def test_a_run_uses_the_prefect_server_of_a_group_that_is_up(home: Home, ports: Ports, tmp_path: Path) -> None:
    assert found(home) == (None, []), "there is no group"
    group(home, ports, tmp_path, ANSWERS)
    server, said = found(home)
    assert server is not None and server.address == f"http://127.0.0.1:{ports.prefect}"
    assert server.password == own_password(home) and server.address in server.text
    assert len(said) <= 1, "it was waited for, while it was starting"
    assert shared_server(home) == server
    stop_supervisor(home.group)
    assert found(home) == (None, []) and shared_server(home) is None, "the record of a group that was stopped is stale"


def test_a_group_that_was_killed_or_is_ending_counts_as_none(home: Home, ports: Ports, tmp_path: Path) -> None:
    group(home, ports, tmp_path, ANSWERS)
    wait_ready(home.group, [PREFECT], 60.0)
    record = GroupRecord(None, ports, time.time(), ending=True)
    write_record(home.group, record)
    assert found(home) == (None, [])
    write_record(home.group, GroupRecord(None, ports, time.time()))
    state = current_state(home.group)
    assert state is not None
    os.kill(state.identity.pid, signal.SIGKILL)
    wait_until(lambda: current_state(home.group) is None, 60.0)
    assert found(home) == (None, []), "its members may still answer, but nobody watches them"


def test_a_group_without_a_usable_server_is_named_and_the_run_starts_its_own(
    home: Home, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "START_SECONDS", 0.0)
    group(home, ports, tmp_path, "")  # reports that it is ready, but does not listen
    wait_ready(home.group, [PREFECT], 60.0)
    server, said = found(home)
    assert server is None and len(said) == 1 and "yatt status" in said[0]
    state = current_state(home.group)
    assert state is not None
    failed = replace(state.service(PREFECT), state=ServiceState.FAILED)
    monkeypatch.setattr(address, "START_SECONDS", 600.0)
    monkeypatch.setattr(address, "current_state", lambda _: replace(state, services={PREFECT: failed}))
    server, said = found(home)
    assert server is None and "yatt status" in said[-1], "one that has failed for good is not waited for"


def test_a_terminal_that_holds_the_group_restarts_its_supervisor_so_the_run_waits(
    home: Home, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_password(home)
    write_record(home.group, GroupRecord(ProcessIdentity.current(), ports, time.time()))
    looks = list[float]()

    def revive(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            group(home, ports, tmp_path, ANSWERS, ProcessIdentity.current())
        elif len(looks) > 2:
            subprocess.run(["sleep", "0.1"], check=True)

    replace_time(monkeypatch, address, sleep=revive)
    server, said = found(home)
    assert server is not None and len(looks) >= 2 and len(said) == 1


def test_the_environment_names_the_server_before_the_group(
    home: Home, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(home, ports, tmp_path, ANSWERS)
    monkeypatch.setenv(PREFECT_VARIABLE, "http://elsewhere:4200/api")
    server, _ = found(home)
    assert server is not None and (server.address, server.password) == ("http://elsewhere:4200", None)
    for own in (f"http://127.0.0.1:{ports.prefect}/api", f"http://localhost:{ports.prefect}/api"):
        monkeypatch.setenv(PREFECT_VARIABLE, own)
        server, _ = found(home)
        assert server is not None and server.password == own_password(home), "only the group's server gets its password"
