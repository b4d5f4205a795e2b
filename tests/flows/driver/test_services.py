"""The services of a session: a supervisor that dies while they start is replaced, and that is no failed start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prefect.context
import pytest

from flows.driver import services as module
from flows.driver import warm_heads
from flows.driver.services import SessionServices
from flows.prefect_io.prefect_server import NAME, PASSWORD_VARIABLE, PREFECT_VARIABLE, SharedServer
from flows.run.home import Home
from ops.group.address import server_of_runs
from ops.group.members import Ports
from tests.ops.group.test_address import ANSWERS, group
from tests.supervisor.support import script_service
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.planning.start import PREFECT, RAY
from yatt_core.supervisor.client import current_state, stop_supervisor
from yatt_core.supervisor.runner import free_port
from yatt_core.supervisor.state import SupervisorState


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionServices]:
    """Yields a session's services, of which small programs take the place."""
    monkeypatch.delenv(module.RAY_VARIABLE, raising=False)
    monkeypatch.setattr(warm_heads, "ray_head_service", lambda folder, **_: script_service(folder, "", name="ray"))
    monkeypatch.setattr(warm_heads, "store_bytes", lambda spec: 1 << 28)
    for modules in ("data_modules", "torch_modules"):
        monkeypatch.setattr(warm_heads, modules, lambda spec: ())
    monkeypatch.setattr(
        module.prefect_server, "server_service", lambda folder, _: script_service(folder, "", name=NAME)
    )
    recovery = SimpleNamespace(grace_seconds=60.0)
    said = list[str]()
    observer = SimpleNamespace(stage=said.append)
    context: Any = SimpleNamespace(
        folder=tmp_path,
        home=Home(tmp_path),
        run="toy-1",
        spec=SimpleNamespace(recovery=recovery),
        observer=observer,
        fence=SimpleNamespace(term=1),
    )
    yield SessionServices(context, lambda say: None, in_flow_run=False)
    stop_supervisor(tmp_path, 0.0)


def test_a_supervisor_that_is_killed_during_a_start_is_replaced(
    services: SessionServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.wait_ready
    kills = list[int]()

    def wait_ready(folder: Path, names: list[str], timeout: float) -> SupervisorState:
        if not kills:
            state = current_state(folder)
            assert state is not None
            kills.append(state.identity.pid)
            os.kill(state.identity.pid, signal.SIGKILL)
        return real(folder, names, timeout)

    monkeypatch.setattr(module, "wait_ready", wait_ready)
    services.choose_server()
    assert services._ready(NAME).name == NAME
    state = current_state(tmp_path)
    assert state is not None and [state.identity.pid] != kills


def test_a_service_that_fails_ends_the_wait(services: SessionServices, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_ready(folder: Path, names: list[str], timeout: float) -> SupervisorState:
        raise InfrastructureError("failed for good")

    monkeypatch.setattr(module, "wait_ready", wait_ready)
    with pytest.raises(InfrastructureError, match="failed for good"):
        services._ready(NAME)


def test_a_run_with_a_shared_server_starts_no_server_of_its_own(services: SessionServices, tmp_path: Path) -> None:
    found: list[SharedServer | None] = [SharedServer("http://127.0.0.1:1", "a server"), None]
    services.find_server = lambda say: found.pop(0)
    for expected in ((RAY,), (RAY, PREFECT)):
        services.choose_server()
        services.keep()
        state = current_state(tmp_path)
        assert state is not None and set(state.services) == set(expected), "the choice is made at each attempt to start"
        assert services.own == expected


def test_a_cluster_needs_a_shared_server(services: SessionServices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.RAY_VARIABLE, "127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=module.RAY_VARIABLE):
        services.choose_server()
    assert services.own == ()


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no Prefect server in the environment, and keeps the client's settings as they are after the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.setattr(prefect.context, "GLOBAL_SETTINGS_CONTEXT", prefect.context.GLOBAL_SETTINGS_CONTEXT)


@pytest.mark.usefixtures("unnamed")
def test_a_later_attempt_keeps_the_runs_own_server(
    services: SessionServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def server(folder: Path, starts: Path) -> Any:
        return script_service(folder, "# {port}", name=NAME)

    monkeypatch.setattr(module.prefect_server, "server_service", server)
    services.find_server = server_of_runs(Home(tmp_path / "runs"))
    started = []
    for _ in range(2):
        services.choose_server()
        services.keep()
        services.set_environment()
        told = dict(os.environ)
        services.use_prefect()
        assert dict(os.environ) == told, "it is not changed beside the thread that connects to Ray"
        assert os.environ[PREFECT_VARIABLE].startswith("http://127.0.0.1:")
        state = current_state(tmp_path)
        assert state is not None and set(state.services) == {"ray", NAME}
        started.append(state.identity)
    assert started[0] == started[1], "the services of the first attempt are not stopped"
    services.stop(in_order=True)
    assert PREFECT_VARIABLE not in os.environ, "another session of this process looks for a server too"


@pytest.mark.usefixtures("unnamed")
def test_a_later_attempt_does_not_use_a_group_that_has_been_stopped(
    services: SessionServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "runs")
    ports = Ports(free_port(set()), 1, 2, 3)

    def unreachable() -> None:
        stop_supervisor(home.group, 0.0)
        raise InfrastructureError("no answer")

    monkeypatch.setattr(module, "require_prefect", unreachable)
    services.find_server = server_of_runs(home)
    try:
        group(home, ports, tmp_path, ANSWERS)
        services.choose_server()
        with pytest.raises(InfrastructureError, match="no answer"):
            services.use_prefect()
        assert os.environ[PREFECT_VARIABLE] == f"http://127.0.0.1:{ports.prefect}/api"
        assert PASSWORD_VARIABLE in os.environ
    finally:
        stop_supervisor(home.group, 0.0)
    services.choose_server()
    assert services.shared is None, "the run starts its own server"
    assert PASSWORD_VARIABLE not in os.environ, "which does not get the group's password"
