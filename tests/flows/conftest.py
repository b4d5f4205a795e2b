"""A home folder in the test's own folder, and drivers as real processes on shared services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.recovery.nursery import Nursery
from tests.services import start_shared_services
from yatt_core.supervisor.client import stop_supervisor


@pytest.fixture(scope="session")
def service_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    folder = tmp_path_factory.mktemp("services")
    try:
        yield start_shared_services(folder)
    finally:
        stop_supervisor(folder)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("drivers"), service_environment)
    yield nursery
    nursery.close()


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery) -> Driver:
    return Driver(tmp_path / "runs", nursery)
