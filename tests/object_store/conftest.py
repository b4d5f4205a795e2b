"""A separate store for each test, on one server per session."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.object_store.server import S3Server
from tests.recovery.nursery import Nursery
from tests.services import start_shared_services
from yatt_core.storage.objects import ObjectStore
from yatt_core.supervisor.client import stop_supervisor

_count = itertools.count()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in shared_server.environment.items():
        monkeypatch.setenv(name, value)
    shared_server.refusals.clear()
    shared_server.strikes.clear()
    shared_server.requests.clear()
    shared_server.answers.clear()
    return shared_server


@pytest.fixture
def url(server: S3Server) -> str:
    """Returns an address in a new bucket."""
    bucket = f"bucket-{next(_count)}"
    server.make_bucket(bucket)
    server.requests.clear()
    return f"s3://{bucket}/some/prefix"


@pytest.fixture
def objects(url: str) -> ObjectStore:
    return ObjectStore(url)


@pytest.fixture(scope="session")
def service_environment(
    tmp_path_factory: pytest.TempPathFactory, shared_server: S3Server
) -> Iterator[Mapping[str, str]]:
    """Starts services whose actors can reach the store."""
    folder = tmp_path_factory.mktemp("services")
    try:
        yield start_shared_services(folder, shared_server.environment)
    finally:
        stop_supervisor(folder)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("drivers"), service_environment)
    yield nursery
    nursery.close()


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery, server: S3Server) -> Driver:
    """Returns a driver of runs that can reach the store."""
    return Driver(tmp_path / "runs", nursery, dict(server.environment))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "toy-1"
    folder.mkdir(parents=True)
    return folder
