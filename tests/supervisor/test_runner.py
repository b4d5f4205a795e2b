"""One service's process: when it is restarted, with which ports, and when it is ready."""

from __future__ import annotations

import re
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.supervisor.support import script_service
from yatt_core.supervisor.runner import ServiceRunner, is_ready
from yatt_core.supervisor.services import RestartPolicy, ServiceState


def run_to_the_end(runner: ServiceRunner) -> ServiceRunner:
    deadline = time.monotonic() + 20
    while runner.life.state not in (ServiceState.READY, ServiceState.FAILED):
        runner.step(time.monotonic())
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return runner


def test_gives_up_after_too_many_deaths(tmp_path):
    spec = script_service(tmp_path, "raise SystemExit(3)")
    runner = run_to_the_end(
        ServiceRunner(spec, f"YATT_TEST={tmp_path}:", RestartPolicy(first_delay=0.01, max_deaths=2))
    )
    assert runner.report().state is ServiceState.FAILED
    assert runner.report().restarts == 2
    assert "code 3; gave up after 3 deaths" in runner.report().reason


def test_a_service_that_is_never_ready_is_restarted(tmp_path):
    """The test tolerates deaths for other reasons in between, such as a lack of memory."""
    spec = replace(script_service(tmp_path, "", ready="tcp://127.0.0.1:{port}"), start_seconds=0.2)
    runner = ServiceRunner(spec, f"YATT_TEST={tmp_path}:", RestartPolicy(first_delay=0.01, max_deaths=4))
    reasons: set[str] = set()
    deadline = time.monotonic() + 30
    while runner.life.starts < 3 and time.monotonic() < deadline:
        runner.step(time.monotonic())
        reasons.add(runner.life.reason)
        time.sleep(0.01)
    runner.end()
    assert any(re.search(r"0\.2 s: tcp://127\.0\.0\.1:\d+ ", reason) for reason in reasons), reasons
    assert runner.report().restarts == 2


def test_a_port_that_was_taken_is_not_tried_again(tmp_path):
    """The first start finds its port taken and dies; the second one uses another."""
    code = f"""
with open({str(tmp_path / "ports")!r}, 'a') as stream:
    stream.write('{{port}}\\n')
if len(open({str(tmp_path / "ports")!r}).readlines()) == 1:
    raise SystemExit('address in use')
"""
    runner = run_to_the_end(
        ServiceRunner(script_service(tmp_path, code), f"YATT_TEST={tmp_path}:", RestartPolicy(first_delay=0.01))
    )
    first, second = (tmp_path / "ports").read_text().split()
    assert first != second
    assert runner.report().address == f"127.0.0.1:{second}"
    runner.end()


def test_ports_of_one_service_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "randbelow", lambda count: 0)
    runner = run_to_the_end(
        ServiceRunner(script_service(tmp_path, "{port}, {port_other}"), f"YATT_TEST={tmp_path}:", RestartPolicy())
    )
    runner.end()
    assert len(set(runner.report().ports.values())) == 2


def test_a_listener_that_does_not_speak_http_is_not_ready(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def say_hello():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"hello\n")

        said = pool.submit(say_hello)
        assert not is_ready(f"http://127.0.0.1:{listener.getsockname()[1]}/health", tmp_path / "log", 0)
        said.result(10)
