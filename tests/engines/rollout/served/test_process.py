"""The process of an engine: what its calls return, and what becomes of it and its caller when either of them ends."""

from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from tests.engines.rollout.served.stand_in import KIND, NAME, STAND_IN, start
from yatt_core.engine_environments import find_environment
from yatt_core.engines.rollout.served import process as module
from yatt_core.engines.rollout.served.answering import answer_calls
from yatt_core.engines.rollout.served.process import EngineProcess, process_variables
from yatt_core.engines.rollout.served.protocol import VERSION, Call, Greeting, Opening, receive, send
from yatt_core.errors import ConfigurationError, InfrastructureError

SECONDS = 20.0


@pytest.fixture
def process() -> Iterator[EngineProcess]:
    made = start()
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    """Returns whether a process ends within the time limit."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_values_and_expected_errors_come_back(process: EngineProcess) -> None:
    assert process.call("echo", {"a": [1, 2]}) == {"a": (1, 2)}
    with pytest.raises(ConfigurationError, match=r"^not like this$"):
        process.call("refuse", "not like this")
    assert process.call("echo", 7) == 7 and not process.is_lost


def test_an_engine_that_cannot_be_opened_tells_why_and_ends() -> None:
    begun = list[EngineProcess]()
    with pytest.raises(ConfigurationError, match=r"^no such model$"):
        start("no such model", started=begun.append)
    assert is_gone(begun[0].pid)


def test_the_workflows_libraries_do_not_reach_an_environment_of_the_engines_own(tmp_path: Path) -> None:
    own = find_environment(KIND, None)
    given = {"PYTHONPATH": "/workflow", "VIRTUAL_ENV": "/workflow", "PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "1"}
    found = process_variables(replace(own, separate=True, python=tmp_path / "bin" / "python"), given)
    assert found == {"PATH": f"{tmp_path / 'bin'}:/usr/bin", "CUDA_VISIBLE_DEVICES": "1"}
    assert process_variables(own, given)["PYTHONPATH"] == "/workflow", "YATT's own"


def test_a_python_that_cannot_run_the_engines_side_is_an_error_of_configuration() -> None:
    broken = replace(STAND_IN, module="no_such_module")
    with pytest.raises(
        ConfigurationError, match=rf"(?s)^{sys.prefix}: .*exit code 1.*No module named 'no_such_module'"
    ):
        EngineProcess(broken, None, Opening("", {}, 1))


def test_what_the_process_writes_is_logged_and_it_ends_when_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        process = start()
        process.call("say", "hello\nloading 10 %\rloading 90 %")
        process.close()
    assert [line.removeprefix("Stand-in: ") for line in caplog.messages if line.startswith("Stand-in: ")][1:] == [
        "hello",
        "loading 90 %",
    ]
    assert is_gone(process.pid)
    with pytest.raises(InfrastructureError, match="closed"):
        process.call("echo", 1)


@pytest.mark.parametrize("way", ["exception", "signal"])
def test_a_process_that_ends_is_reported_with_its_last_lines(process: EngineProcess, way: str) -> None:
    process.call("say", "this came last")
    if way == "signal":
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError) as caught:
        process.call("fail" if way == "exception" else "hang")
    facts = ("SIGKILL",) if way == "signal" else ("exit code 1", "RuntimeError: an error that nobody expects")
    assert all(fact in str(caught.value) for fact in ("this came last", *facts))
    assert process.is_lost
    with pytest.raises(InfrastructureError, match="this came last"):
        process.call("echo", 1)


def test_a_process_that_hangs_is_ended_and_reported() -> None:
    process = start(seconds=0.3)
    process.call("say", "about to hang")
    with pytest.raises(InfrastructureError, match=r"'hang' for 0\.3 s(.|\n)*about to hang"):
        process.call("hang")
    assert process.is_lost and is_gone(process.pid)


def test_another_thread_ends_the_process_with_a_reason(process: EngineProcess) -> None:
    threading.Thread(target=process.end, args=["its second node is lost"]).start()
    with pytest.raises(InfrastructureError, match=r"^its second node is lost"):
        process.call("hang")
    assert process.is_lost and is_gone(process.pid)


def test_a_node_without_the_engine_is_an_error_of_configuration(process: EngineProcess) -> None:
    process.end("its second node lacks vLLM", ConfigurationError)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="its second node lacks vLLM"):
            process.call("echo", 1)


def test_an_idle_process_that_was_ended_is_lost_at_once(process: EngineProcess) -> None:
    process.end("its second node is lost")
    assert process.is_lost and "its second node is lost" in process.wait()


def test_the_process_can_be_ended_while_it_is_opened() -> None:
    with pytest.raises(InfrastructureError, match=r"^never mind"):
        start("no such model", started=lambda process: process.end("never mind"))


def test_the_process_ends_with_its_actor_even_if_that_is_killed() -> None:
    actor = subprocess.Popen([sys.executable, "-m", NAME, "owner"], stdout=subprocess.PIPE, text=True)
    assert actor.stdout is not None
    with actor.stdout as output:
        engine = int(output.readline())
        assert psutil.Process(engine).ppid() == actor.pid
        actor.kill()
        actor.wait()
        assert is_gone(engine)


def test_both_sides_say_their_versions(process: EngineProcess) -> None:
    assert process.versions == {"python": platform.python_version(), "numpy": version("numpy")}


def test_an_engine_of_another_protocol_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", 7)
    with pytest.raises(ConfigurationError, match=rf"speaks protocol {VERSION}, and its actor protocol 7: .* resume it"):
        start()


def test_an_actor_of_another_protocol_is_refused_by_the_engine() -> None:
    own, other = Pipe()
    thread = threading.Thread(target=answer_calls, args=(other, {}, ()))
    thread.start()
    assert receive(own).protocol == VERSION
    send(own, Greeting(VERSION + 1, {}))
    send(own, Call("open", ()))
    answer = receive(own)
    assert isinstance(answer.error, ConfigurationError) and f"protocol {VERSION + 1}" in str(answer.error)
    thread.join(SECONDS)
    assert not thread.is_alive(), "nothing was opened"
