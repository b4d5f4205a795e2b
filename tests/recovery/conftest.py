"""A Ray head whose actors have failpoints, a Prefect server, and warm drivers for the tests of recovery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.postgresql import Server, start_server
from tests.recovery.nursery import Nursery


@dataclass(frozen=True)
class Bed:
    """The services and folders that all tests of a session share.

    failpoints: folder that actors and drivers check.
    """

    services: Mapping[str, str]
    failpoints: Path
    nursery: Nursery


@pytest.fixture(scope="session")
def bed(service_environment: Mapping[str, str], failpoints: Path, nursery: Nursery) -> Bed:
    return Bed(service_environment, failpoints, nursery)


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
