"""A Ray head whose actors have failpoints, a Prefect server, and warm drivers for the tests of recovery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.postgresql import Server, start_server
from tests.recovery.failpoints import ROOT, VARIABLE
from tests.recovery.nursery import Nursery
from tests.services import start_shared_services
from yatt_core.supervisor.client import stop_supervisor


@dataclass(frozen=True)
class Bed:
    """What the tests of a session share. failpoints: the folder that actors and drivers look into."""

    services: dict[str, str]
    failpoints: Path
    nursery: Nursery


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder, failpoints = tmp_path_factory.mktemp("services"), tmp_path_factory.mktemp("failpoints")
    site = {VARIABLE: str(failpoints), "PYTHONPATH": str(ROOT / "tests" / "recovery" / "site")}
    try:
        services = start_shared_services(folder, site)
        nursery = Nursery(tmp_path_factory.mktemp("drivers"), services)
        try:
            yield Bed(services, failpoints, nursery)
        finally:
            nursery.close()
    finally:
        stop_supervisor(folder)


@pytest.fixture
def driver(tmp_path: Path, bed: Bed) -> Driver:
    return Driver(tmp_path / "runs", bed.nursery)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("postgresql") / "data")
    try:
        yield server
    finally:
        server.close()
