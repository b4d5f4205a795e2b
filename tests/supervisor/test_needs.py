"""Services that need others: the order of starts and ends, surviving offspring, and groups without a driver."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from tests.supervisor.support import script_service, supervised
from tests.waiting import wait_until
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.supervisor.client import ensure_supervisor, stop_supervisor, wait_ready
from yatt_core.supervisor.process import is_alive, offspring
from yatt_core.supervisor.services import ServiceSpec, ServiceState, ending_order
from yatt_core.supervisor.state import SupervisorFiles, SupervisorRequest, read_state

CHILD = """
import signal, subprocess, sys
child = '''import signal, sys, time
def end(number, frame):
    open({said!r}, 'a').write('in order ')
    sys.exit()
signal.signal(signal.SIGTERM, end)
open({said!r}, 'a').write('began ')
time.sleep(600)'''
started = subprocess.Popen([sys.executable, '-S', '-c', child])
signal.signal(signal.SIGTERM, lambda *_: (started.kill(), sys.exit()))
"""
TELLS = """
import signal, sys
def end(number, frame):
    open({said!r}, 'a').write('{name} ')
    sys.exit()
signal.signal(signal.SIGTERM, end)
open({said!r}, 'a').write('+{name} ')
"""


def named(name: str, *needs: str) -> ServiceSpec:
    return ServiceSpec(name, ("x",), {}, "log:x", "l", needs=needs)


def test_services_end_before_those_they_need():
    services = [named("a"), named("b", "a"), named("c", "b", "a"), named("d")]
    assert ending_order(services) == [("c", "d"), ("b",), ("a",)]
    assert ending_order([]) == []


@pytest.mark.parametrize("services", [[named("a", "b"), named("b", "a")], [named("a", "missing")]])
def test_needs_that_cannot_be_met_are_refused(services):
    with pytest.raises(ConfigurationError, match=f"services {', '.join(service.name for service in services)}:"):
        ending_order(services)


def test_a_request_keeps_its_needs_and_its_missing_grace_period():
    service = replace(named("b", "a"), offspring_survives=True)
    request = SupervisorRequest((named("a"), service), None, "revision")
    assert SupervisorRequest.from_json(request.to_json()) == request


def test_a_service_starts_once_its_needs_are_ready_and_ends_before_them(run_folder):
    said = run_folder / "said"
    first = script_service(run_folder, TELLS.format(said=str(said), name="first"), name="first", stop_seconds=10.0)
    second = script_service(run_folder, TELLS.format(said=str(said), name="second"), name="second", stop_seconds=10.0)
    ensure_supervisor(run_folder, [replace(second, needs=("first",)), first], grace=None)
    wait_ready(run_folder, ["first", "second"], 20)
    stop_supervisor(run_folder)
    assert said.read_text().split() == ["+first", "+second", "second", "first"]


def test_a_service_whose_need_has_failed_is_never_started(run_folder):
    first = replace(script_service(run_folder, "raise SystemExit(3)", name="first"), restart=False)
    second = replace(script_service(run_folder, "", name="second"), needs=("first",))
    ensure_supervisor(run_folder, [first, second], grace=None)
    with pytest.raises(InfrastructureError, match=r"\bcode 3\b"):
        wait_ready(run_folder, ["first"], 20)
    state = read_state(SupervisorFiles.of(run_folder))
    assert state is not None
    assert (state.service("second").state, state.service("second").identity) == (ServiceState.WAITING, None)


def test_offspring_outlives_a_death_and_is_ended_in_order_with_the_service(run_folder):
    said = run_folder / "said"
    code = CHILD.format(said=str(said))
    service = script_service(run_folder, code, name="worker", stop_seconds=10.0)
    ensure_supervisor(run_folder, [replace(service, offspring_survives=True)], grace=None)
    before = wait_ready(run_folder, ["worker"], 20).service("worker")
    wait_until(lambda: said.exists() and said.read_text() == "began ")
    assert before.identity is not None
    child = next(process for process in supervised(run_folder) if process != before.identity)
    os.kill(before.identity.pid, signal.SIGKILL)
    wait_until(lambda: (state := read_state(SupervisorFiles.of(run_folder))) and state.service("worker").restarts == 1)
    after = wait_ready(run_folder, ["worker"], 20).service("worker")
    assert after.last_death == "exited with code -9"
    assert is_alive(child), "the service's child continues without it"
    wait_until(lambda: said.read_text().count("began") == 2)
    assert child in offspring(after.identity, SupervisorFiles.of(run_folder).mark)
    stop_supervisor(run_folder)
    assert said.read_text() == "began began in order in order "
    assert not is_alive(child)


STUBBORN = """
import subprocess, sys
child = '''import signal, sys, time
heard = []
def end(number, frame):
    heard.append(number)
    open({said!r}, 'a').write('asked ')
    if len(heard) == 2:
        sys.exit()
signal.signal(signal.SIGTERM, end)
open({said!r}, 'a').write('began ')
while True:
    time.sleep(600)'''
subprocess.Popen([sys.executable, '-S', '-c', child])
"""


@pytest.mark.verify
def test_offspring_gets_a_second_signal_before_it_is_killed(run_folder):
    said = run_folder / "said"
    service = script_service(run_folder, STUBBORN.format(said=str(said)), name="worker", stop_seconds=2.0)
    ensure_supervisor(run_folder, [replace(service, offspring_survives=True)], grace=None)
    wait_ready(run_folder, ["worker"], 20)
    wait_until(lambda: said.exists() and said.read_text() == "began ")
    stop_supervisor(run_folder)
    assert said.read_text() == "began asked asked "


def test_secrets_reach_the_services_and_no_file(run_folder):
    code = "import os\nprint('password is', len(os.environ['SECRET']))"
    ensure_supervisor(run_folder, [script_service(run_folder, code)], None, secrets={"SECRET": "hunter2-hunter2"})
    wait_ready(run_folder, ["echo"], 20)
    assert "password is 15" in (run_folder / "echo.log").read_text()
    written = b"".join(path.read_bytes() for path in run_folder.rglob("*") if path.is_file())
    assert b"hunter2" not in written


@pytest.mark.verify
def test_a_group_without_a_grace_period_needs_no_driver(run_folder):
    state = ensure_supervisor(run_folder, [script_service(run_folder, "")], grace=None)
    wait_ready(run_folder, ["echo"], 20)
    time.sleep(0.5)
    assert is_alive(state.identity)
