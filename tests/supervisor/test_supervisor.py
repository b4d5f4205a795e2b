"""The supervisor with real processes: it restarts services, outlives drivers, ends everything, and is the only one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.supervisor.support import script_service, supervised
from tests.waiting import wait_until
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor import client
from yatt_core.supervisor.client import (
    Heartbeat,
    current_state,
    ensure_alive,
    ensure_supervisor,
    stop_supervisor,
    wait_ready,
)
from yatt_core.supervisor.process import ProcessIdentity, is_alive
from yatt_core.supervisor.services import RestartPolicy, ServiceState
from yatt_core.supervisor.state import (
    DriverWatch,
    SupervisorFiles,
    SupervisorRequest,
    SupervisorState,
    read_state,
    write_state,
)
from yatt_core.supervisor.supervisor import Supervisor

TREE = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']
subprocess.Popen(sleep, process_group=0)
subprocess.Popen(sleep, start_new_session=True)
"""
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/health' else 404)
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()
"""
DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.supervisor.support import script_service
from yatt_core.supervisor.client import Heartbeat, ensure_supervisor, wait_ready
folder = Path(sys.argv[1])
with Heartbeat(folder, term=1, interval=0.2):
    ensure_supervisor(folder, [script_service(folder, '', name='one')], grace=3.0)
    wait_ready(folder, ['one'], 20)
    print('up', flush=True)
    time.sleep(600)
"""


def leader(folder, name) -> ProcessIdentity:
    state = read_state(SupervisorFiles.of(folder))
    assert state is not None
    found = state.service(name).identity
    assert found is not None
    return found


def test_a_killed_service_is_restarted_at_the_same_address(run_folder):
    server = script_service(run_folder, SERVER, ready="http://127.0.0.1:{port}/health")
    other = script_service(run_folder, TREE, name="other")
    ensure_supervisor(run_folder, [server, other], grace=60)
    before = wait_ready(run_folder, ["echo", "other"], 20)
    first = leader(run_folder, "echo")
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: leader(run_folder, "echo") != first)
    after = wait_ready(run_folder, ["echo"], 20)
    assert after.service("echo").address == before.service("echo").address != ""
    assert after.service("echo").restarts == 1
    assert after.service("other") == before.service("other")


def test_offspring_of_a_dead_service_dies_with_it(run_folder):
    ensure_supervisor(run_folder, [script_service(run_folder, TREE)], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    old = supervised(run_folder)
    assert len(old) == 3
    os.kill(leader(run_folder, "echo").pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, old)))
    wait_ready(run_folder, ["echo"], 20)


def test_stop_ends_everything_within_its_bound(run_folder):
    services = [script_service(run_folder, TREE, name=name) for name in ("one", "two")]
    state = ensure_supervisor(run_folder, services, grace=60)
    wait_ready(run_folder, ["one", "two"], 20)
    assert len(supervised(run_folder)) == 6
    began = time.monotonic()
    stop_supervisor(run_folder)
    assert time.monotonic() - began < 20, "it must end by itself, long before it would be killed"
    assert supervised(run_folder) == []
    assert not is_alive(state.identity)
    assert current_state(run_folder) is None
    ended = read_state(SupervisorFiles.of(run_folder))
    assert ended is not None
    assert ended.ended == "told to stop"
    assert {service.state for service in ended.services.values()} == {ServiceState.ENDED}
    stop_supervisor(run_folder)


def test_sigterm_ends_everything_and_sighup_nothing(run_folder):
    state = ensure_supervisor(run_folder, [script_service(run_folder, "")], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    os.kill(state.identity.pid, signal.SIGHUP)
    time.sleep(0.3)
    assert is_alive(state.identity)
    os.kill(state.identity.pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(state.identity))
    assert supervised(run_folder) == []


def test_no_driver_attaches_to_a_supervisor_that_is_ending(run_folder):
    """The supervisor announces its end before ending a service; a driver that arrives then waits and starts another."""
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    needed = script_service(run_folder, code, name="needed", stop_seconds=4.0)
    services = [needed, replace(script_service(run_folder, ""), needs=("needed",))]
    first = ensure_supervisor(run_folder, services, grace=60)
    wait_ready(run_folder, ["echo"], 20)
    os.kill(first.identity.pid, signal.SIGTERM)
    files = SupervisorFiles.of(run_folder)
    wait_until(lambda: (state := read_state(files)) and state.service("echo").state is ServiceState.ENDED)
    second = ensure_supervisor(run_folder, services, grace=60)
    assert second.identity != first.identity
    assert not is_alive(first.identity)
    wait_ready(run_folder, ["echo"], 20)


def test_outlives_a_killed_driver_for_its_grace_period_only(run_folder, request):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(run_folder), str(request.config.rootpath)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"up\n"
    service = leader(run_folder, "one")
    time.sleep(4.0)
    assert is_alive(service), "the heartbeat keeps it alive beyond the grace period"
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    state = current_state(run_folder)
    assert state is not None
    wait_until(lambda: not is_alive(state.identity), 30)
    assert time.time() - SupervisorFiles.of(run_folder).driver.stat().st_mtime >= 3.0
    assert supervised(run_folder) == []
    ended = read_state(SupervisorFiles.of(run_folder))
    assert ended is not None
    assert "no sign of a driver for 3 s" in ended.ended


def test_does_not_end_while_a_driver_is_attaching(tmp_path, monkeypatch):
    """An attaching driver holds the lock until it has touched the driver's file."""
    files = SupervisorFiles.of(tmp_path)
    files.root.mkdir()
    supervisor = Supervisor(files, SupervisorRequest((), 60.0, ""), RestartPolicy(), {})
    silence = iter([61.0, 61.0, 0.0, 61.0, 61.0])
    monkeypatch.setattr(DriverWatch, "silence", lambda watch: next(silence))
    with files.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert supervisor._reason_to_end() == "", "a driver is attaching"
    assert supervisor._reason_to_end() == "", "the driver has attached"
    assert not files.state.exists()
    assert supervisor._reason_to_end() == "no sign of a driver for 60 s"
    assert state_of(files.state).ending == "no sign of a driver for 60 s", "announced while no driver can attach"


def test_same_request_attaches_and_another_replaces(run_folder):
    service = script_service(run_folder, "")
    first = ensure_supervisor(run_folder, [service], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    assert ensure_supervisor(run_folder, [service], grace=60).identity == first.identity
    old = leader(run_folder, "echo")
    second = ensure_supervisor(run_folder, [replace(service, environment={"A": "b"})], grace=60)
    assert second.identity != first.identity
    assert not is_alive(first.identity)
    assert not is_alive(old)
    wait_ready(run_folder, ["echo"], 20)
    assert len(supervised(run_folder)) == 1


def test_concurrent_starters_get_one_supervisor(run_folder):
    service = script_service(run_folder, "")
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: ensure_supervisor(run_folder, [service], grace=60), range(4)))
    assert len({state.identity for state in states}) == 1


def test_leftovers_of_a_killed_supervisor_are_ended_first(run_folder):
    service = script_service(run_folder, TREE)
    first = ensure_supervisor(run_folder, [service], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    old = supervised(run_folder)
    os.kill(first.identity.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(first.identity))
    assert current_state(run_folder) is None
    with pytest.raises(InfrastructureError, match=re.escape(str(SupervisorFiles.of(run_folder).root))):
        wait_ready(run_folder, ["echo"], 1)
    assert all(map(is_alive, old))
    second = ensure_supervisor(run_folder, [service], grace=60)
    assert second.identity != first.identity
    assert not any(map(is_alive, old))
    wait_ready(run_folder, ["echo"], 20)
    assert len(supervised(run_folder)) == 3


def test_a_living_driver_restarts_a_killed_supervisor_at_the_same_ports(run_folder):
    server = script_service(run_folder, SERVER, ready="http://127.0.0.1:{port}/health")
    assert not ensure_alive(run_folder), "none was ever started"
    first = ensure_supervisor(run_folder, [server], grace=60)
    before = wait_ready(run_folder, ["echo"], 20)
    assert not ensure_alive(run_folder), "it is alive"
    old = supervised(run_folder)
    os.kill(first.identity.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(first.identity))
    assert ensure_alive(run_folder)
    after = wait_ready(run_folder, ["echo"], 20)
    assert after.identity != first.identity
    assert after.service("echo").address == before.service("echo").address != ""
    assert not any(map(is_alive, old)), "its leftovers were ended first"
    stop_supervisor(run_folder)
    assert not ensure_alive(run_folder), "it ended on purpose"


def test_a_port_taken_meanwhile_is_not_requested_again(run_folder):
    server = script_service(run_folder, SERVER, ready="http://127.0.0.1:{port}/health")
    first = ensure_supervisor(run_folder, [server], grace=60)
    port = wait_ready(run_folder, ["echo"], 20).service("echo").ports["port"]
    for process in (first.identity, leader(run_folder, "echo")):
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda process=process: not is_alive(process))
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        assert ensure_alive(run_folder)
        assert wait_ready(run_folder, ["echo"], 20).service("echo").ports["port"] != port


def test_a_driver_of_another_code_revision_starts_its_own_cluster(run_folder, monkeypatch):
    services = [script_service(run_folder, "")]
    first = ensure_supervisor(run_folder, services, grace=60)
    assert ensure_supervisor(run_folder, services, grace=60).identity == first.identity
    monkeypatch.setattr(client, "code_revision", lambda: "another")
    second = ensure_supervisor(run_folder, services, grace=60)
    assert second.identity != first.identity
    assert not is_alive(first.identity)


def test_leftovers_of_a_killed_supervisor_are_ended_by_stop(run_folder):
    first = ensure_supervisor(run_folder, [script_service(run_folder, TREE)], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    os.kill(first.identity.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(first.identity))
    stop_supervisor(run_folder)
    assert supervised(run_folder) == []


def test_a_failed_service_is_reported_with_its_log_and_leaves_the_others(run_folder):
    services = [
        script_service(run_folder, "raise SystemExit('no such model')", name="bad", restart=False),
        replace(script_service(run_folder, "", name="absent", restart=False), argv=("/no/such/program",)),
        script_service(run_folder, "", name="good"),
    ]
    ensure_supervisor(run_folder, services, grace=60)
    with pytest.raises(InfrastructureError, match=r"(?s)service bad .*code 1\b.*no such model"):
        wait_ready(run_folder, ["good", "bad"], 20)
    with pytest.raises(InfrastructureError, match=r"service absent .*/no/such/program"):
        wait_ready(run_folder, ["absent"], 20)
    wait_ready(run_folder, ["good"], 20)
    with pytest.raises(InfrastructureError, match="service 'god'"):
        wait_ready(run_folder, ["god"], 20)


def test_not_ready_in_time_names_the_service(run_folder):
    ensure_supervisor(run_folder, [script_service(run_folder, "", ready="tcp://127.0.0.1:{port}")], grace=60)
    wait_until(lambda: state_of(SupervisorFiles.of(run_folder).state).service("echo").state is ServiceState.STARTING)
    with pytest.raises(InfrastructureError, match=r"service echo .*\b0\.5 s .*\bstarting\b"):
        wait_ready(run_folder, ["echo"], 0.5)


def test_tcp_readiness_is_detected(run_folder):
    code = "import socket\nlistener = socket.create_server(('127.0.0.1', {port}))"
    ensure_supervisor(run_folder, [script_service(run_folder, code, ready="tcp://127.0.0.1:{port}")], grace=60)
    address = wait_ready(run_folder, ["echo"], 20).service("echo").address
    host, _, port = address.partition(":")
    socket.create_connection((host, int(port)), 1).close()


def test_byte_code_is_cached_in_services(run_folder, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import os\nprint('value', os.environ.get('PYTHONDONTWRITEBYTECODE'), flush=True)"
    ensure_supervisor(run_folder, [script_service(run_folder, code)], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    assert "value None" in (run_folder / "echo.log").read_text()


def test_an_older_driver_stops_its_heartbeat_for_a_newer_one(tmp_path):
    file = SupervisorFiles.of(tmp_path).driver
    with Heartbeat(tmp_path, term=2, interval=0.05):
        touched = file.stat().st_mtime_ns
        wait_until(lambda: file.stat().st_mtime_ns > touched)
        with Heartbeat(tmp_path, term=3, interval=60):
            time.sleep(0.1)
            before = file.stat().st_mtime_ns
            time.sleep(0.3)
            assert file.stat().st_mtime_ns == before
    assert json.loads(file.read_text())["term"] == 3


def test_a_supervisor_on_another_host_is_left_alone_while_it_seems_alive(run_folder):
    service = script_service(run_folder, "")
    ensure_supervisor(run_folder, [service], grace=60)
    stop_supervisor(run_folder)
    files = SupervisorFiles.of(run_folder)
    state = read_state(files)
    assert state is not None
    write_state(files, replace(state, identity=replace(state.identity, host="elsewhere"), ended=""))
    with pytest.raises(InfrastructureError, match=r"host elsewhere \(pid \d+\)"):
        ensure_supervisor(run_folder, [service], grace=60)
    long_ago = time.time() - 3600
    os.utime(files.state, (long_ago, long_ago))
    ensure_supervisor(run_folder, [service], grace=60)
    wait_ready(run_folder, ["echo"], 20)


def test_damaged_state_is_reported(run_folder):
    files = SupervisorFiles.of(run_folder)
    files.root.mkdir()
    files.state.write_text("{}")
    with pytest.raises(InfrastructureError, match=re.escape(str(files.state))):
        ensure_supervisor(run_folder, [script_service(run_folder, "")], grace=60)
    files.state.unlink()


def test_a_leaving_driver_keeps_services_that_a_later_one_attached_to(run_folder):
    """The first driver has released its lease and is about to stop the cluster when the next one attaches."""
    service = script_service(run_folder, "")
    with Heartbeat(run_folder, term=1):
        first = ensure_supervisor(run_folder, [service], grace=60)
    with Heartbeat(run_folder, term=2):
        assert ensure_supervisor(run_folder, [service], grace=60).identity == first.identity
        stop_supervisor(run_folder, term=1)
        assert current_state(run_folder) is not None
        wait_ready(run_folder, ["echo"], 20)
        stop_supervisor(run_folder, term=2)
        assert current_state(run_folder) is None


def test_a_failed_write_of_the_state_file_ends_no_service(run_folder):
    """Simulates a full disk by a folder in the file's place, which makes the write fail even for root."""
    state = ensure_supervisor(run_folder, [script_service(run_folder, "")], grace=60)
    wait_ready(run_folder, ["echo"], 20)
    file = SupervisorFiles.of(run_folder).state
    os.kill(state.identity.pid, signal.SIGSTOP)  # so that it does not write the file between the two steps
    file.rename(file.with_name("kept"))
    (file / "in the way").mkdir(parents=True)
    os.kill(state.identity.pid, signal.SIGCONT)
    service = state_of(file.with_name("kept")).service("echo").identity
    os.kill(service.pid, signal.SIGKILL)  # causes a change of state to write
    wait_until(lambda: "cannot be written" in SupervisorFiles.of(run_folder).log.read_text())
    assert is_alive(state.identity)
    (file / "in the way").rmdir()
    file.rmdir()
    wait_until(file.exists)
    assert wait_ready(run_folder, ["echo"], 20).service("echo").restarts == 1


def state_of(file) -> SupervisorState:
    return SupervisorState.from_json(json.loads(file.read_text()))
