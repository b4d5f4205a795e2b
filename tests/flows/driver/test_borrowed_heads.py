"""A session takes over a warm head that suits its run, and only such a one; small programs take the place of Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver import services as module
from flows.driver import warm_heads
from flows.driver.services import SessionServices
from flows.driver.warm_heads import covers
from flows.prefect_io.prefect_server import NAME, SharedServer
from flows.run import shared_environment
from flows.run.home import Home
from flows.run.lending import free_cluster
from flows.run.shared_cluster import clear_abandoned, services_folder
from flows.run.shared_environment import CORES, differing, environment_digests
from ops.group import clusters
from ops.group.clusters import ClusterOwner
from ops.preflight import start_forecast
from tests.supervisor.support import script_service, supervised
from tests.waiting import wait_until
from yatt_core.cluster.ray_head import OF_TORCH, STORE, head_covers, ray_head_service
from yatt_core.models.offline import OFFLINE, SAID
from yatt_core.planning.start import RAY, WARM_RAY
from yatt_core.supervisor.client import current_state, stop_supervisor
from yatt_core.supervisor.services import ServiceSpec, ServiceState
from yatt_core.supervisor.state import SupervisorRequest

SERVER = SharedServer("http://127.0.0.1:1", "a server")


def head(folder: Path, object_store_bytes: int, **_: Any) -> ServiceSpec:
    (folder / "logs").mkdir(exist_ok=True)
    plain = script_service(folder, "", name=RAY)
    return replace(plain, argv=(*plain.argv, f"{STORE}{object_store_bytes}"))


class Session:
    """The services of a session of a run."""

    def __init__(self, home: Home, run: str, server: SharedServer | None) -> None:
        self.said = list[str]()
        folder = home.run_folder(run)
        folder.mkdir(exist_ok=True)
        context: Any = SimpleNamespace(
            folder=folder,
            home=home,
            run=run,
            spec=SimpleNamespace(recovery=SimpleNamespace(grace_seconds=60.0)),
            observer=SimpleNamespace(stage=self.said.append),
            fence=SimpleNamespace(term=1),
        )
        self.services = SessionServices(context, lambda say: server, in_flow_run=False)
        self.services.choose_server()
        self.services.borrow()


def is_up(folder: Path) -> bool:
    """Returns whether the head of a cluster is ready: its state does not change any more by itself."""
    state = current_state(folder)
    return state is not None and RAY in state.services and state.services[RAY].state is ServiceState.READY


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Yields a home whose service group has a warm head."""
    made = Home(tmp_path / "runs")
    made.group.mkdir(parents=True)
    monkeypatch.delenv(module.RAY_VARIABLE, raising=False)
    # It is another one now than during the test.
    monkeypatch.setattr(shared_environment, "UNREAD", shared_environment.UNREAD | {"PYTEST_CURRENT_TEST"})
    for each in (warm_heads, clusters):
        monkeypatch.setattr(each, "ray_head_service", head)
    monkeypatch.setattr(warm_heads, "store_bytes", lambda spec: 1 << 28)
    for modules in ("data_modules", "torch_modules"):
        monkeypatch.setattr(warm_heads, modules, lambda spec: ())
    monkeypatch.setattr(
        module.prefect_server, "server_service", lambda folder, _: script_service(folder, "", name=NAME)
    )
    ended = threading.Event()
    thread = threading.Thread(target=ClusterOwner(made, 1, ended).run)
    thread.start()
    wait_until(lambda: (free := free_cluster(made)) is not None and is_up(Path(free.folder)), 60.0)
    yield made
    ended.set()
    thread.join()
    clear_abandoned(made)
    for folder in made.folder.iterdir():
        stop_supervisor(folder, 0.0)


def test_a_run_is_served_by_the_warm_head_and_gives_it_back(home: Home) -> None:
    free = free_cluster(home)
    assert free is not None
    before = current_state(Path(free.folder))
    session = Session(home, "toy-1", SERVER)
    assert session.said == ["using a warm Ray head of the service group"]
    session.services.keep()
    assert session.services.own == (WARM_RAY,)
    assert services_folder(home.run_folder("toy-1")) == session.services.folder == Path(free.folder)
    assert current_state(Path(free.folder)) == before, "the head was up already"
    assert not supervised(home.run_folder("toy-1"))

    other = Session(home, "toy-2", SERVER)
    other.services.keep()
    assert other.services.own == (RAY,)
    assert services_folder(home.run_folder("toy-2")) == home.run_folder("toy-2")

    session.services.stop(in_order=True)
    wait_until(lambda: free_cluster(home) == free, 10.0)


def test_a_session_that_fails_ends_the_warm_head(home: Home) -> None:
    session = Session(home, "toy-1", SERVER)
    folder = session.services.folder
    session.services.stop(in_order=False)
    wait_until(lambda: not supervised(folder), 30.0)


def test_a_head_of_another_environment_is_left_alone_and_the_variable_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY_OF_A_JUDGE", "secret")
    session = Session(home, "toy-1", SERVER)
    assert session.said == ["starting a Ray head: that of the service group has another environment (A_KEY_OF_A_JUDGE)"]
    assert session.services.own == (RAY,)
    wait_until(lambda: free_cluster(home) is not None, 10.0)


def test_a_head_that_is_too_small_and_one_without_a_server_are_left_alone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Session(home, "toy-1", None).services.own == (RAY, NAME), "it would be restarted with a server"
    monkeypatch.setattr(warm_heads, "store_bytes", lambda spec: 1 << 40)
    wait_until(lambda: free_cluster(home) is not None, 10.0)
    assert Session(home, "toy-2", SERVER).said == ["starting a Ray head: that of the service group is for other runs"]


def test_after_an_update_the_user_hears_what_to_restart(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_heads, "code_revision", lambda: "newer")
    (said,) = Session(home, "toy-1", SERVER).said
    assert said == (
        "starting a Ray head: that of the service group runs other code; restart the group with `yatt down` and `yatt up`"
    )


def test_a_check_asks_the_same_as_a_session(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spec: Any = SimpleNamespace(recovery=SimpleNamespace(grace_seconds=60.0))

    def services() -> tuple[str, ...]:
        return start_forecast._services(home, spec, True)

    assert services() == (WARM_RAY,)
    spec.recovery.grace_seconds = clusters.GRACE_SECONDS + 1.0
    assert services() == (RAY,), "the head would not wait that long for another driver"
    spec.recovery.grace_seconds = 60.0
    monkeypatch.setattr(warm_heads, "store_bytes", lambda spec: 1 << 40)
    assert services() == (RAY,), "its object store is too small"


def test_a_head_covers_smaller_stores_and_other_imports_but_nothing_else(tmp_path: Path) -> None:
    needed = ray_head_service(tmp_path, cpus=2, object_store_bytes=7, modules=("json",), torch_modules=("torch",))
    assert OF_TORCH in needed.argv
    assert head_covers(ray_head_service(tmp_path, 2, 8, torch_modules=("torch", "other")), needed)
    assert not head_covers(ray_head_service(tmp_path, 2, 8), needed), "each worker would import torch"
    assert not head_covers(ray_head_service(tmp_path, 2, 6, torch_modules=("torch",)), needed)
    assert not head_covers(ray_head_service(tmp_path, 3, 8, torch_modules=("torch",)), needed)
    assert not head_covers(ray_head_service(tmp_path / "other", 2, 8, torch_modules=("torch",)), needed)


def test_services_cover_others_that_wait_for_a_shorter_time(tmp_path: Path) -> None:
    services = (head(tmp_path, 8), script_service(tmp_path, "", name=NAME))
    served = SupervisorRequest(services, 60.0, "code")
    assert covers(served, SupervisorRequest((head(tmp_path, 7),), 59.0, "code"))
    assert not covers(served, SupervisorRequest(services, 61.0, "code"))
    assert not covers(served, SupervisorRequest(services, 60.0, "other code"))
    assert not covers(SupervisorRequest(services[:1], 60.0, "code"), served)
    other = script_service(tmp_path, "other", name=NAME)
    assert not covers(served, SupervisorRequest((other,), 60.0, "code"))


def test_environments_differ_by_what_workers_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SAID, raising=False)
    monkeypatch.delenv(OFFLINE, raising=False)
    before = environment_digests()
    for name in ("TERM", "SSH_AUTH_SOCK", "PREFECT_API_URL", "YATT_LEDGER", "RAY_AUTH_TOKEN_PATH", "PWD"):
        monkeypatch.setenv(name, "other")
    assert differing(before, environment_digests()) == []
    monkeypatch.setenv(OFFLINE, "1")
    monkeypatch.setenv(SAID, "")
    assert differing(before, environment_digests()) == [], "YATT itself has set it"
    monkeypatch.setenv(SAID, "1")
    assert differing(before, environment_digests()) == [OFFLINE]
    for name in ("HF_HOME", "YATT_OTLP", "RAY_memory_usage_threshold"):
        monkeypatch.setenv(name, "other")
    monkeypatch.delenv("PATH")
    found = {"HF_HOME", "PATH", "RAY_memory_usage_threshold", "YATT_OTLP", OFFLINE}
    assert differing(before, environment_digests()) == sorted(found)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {99})
    assert CORES in differing(before, environment_digests())
