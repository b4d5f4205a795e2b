"""A ledger on SQLite and on PostgreSQL, with a clock that only the test moves.

Every test that uses a ledger runs on both; on PostgreSQL only in `make verify` unless it is marked `postgresql`.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from db.core.engine import Fence
from db.core.models import Base
from db.ledger import Ledger
from tests.db.tools import SimulatedClock, holder
from tests.postgresql import Server, start_server

LEDGER = "ledger"
NUMBERS = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test of the ledger twice; those on PostgreSQL stay together, so that `make test` starts one server."""
    if "backend" not in metafunc.fixturenames:
        return
    chosen = metafunc.definition.get_closest_marker("postgresql") is not None
    marks = () if chosen else pytest.mark.verify
    metafunc.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=marks)])


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a ledger once; copying it is faster than migrating."""
    path = tmp_path_factory.mktemp("ledger") / "empty.sqlite"
    Ledger.open(path).close()
    return path


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Starts a server with a ledger in its database `ledger`, which is emptied for each test."""
    server = start_server(tmp_path_factory.mktemp("postgresql") / "data")
    try:
        Ledger.open(server.create(LEDGER)).close()
        yield server
    finally:
        server.close()


def empty_address(server: Server) -> str:
    """Empties the server's ledger and returns its address."""
    with psycopg.connect(server.dsn_of(LEDGER)) as connection:
        connection.execute(f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY")
    return server.dsn_of(LEDGER)


@pytest.fixture
def address(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str | Path]:
    """Returns the address of an empty ledger for this test."""
    if backend == "sqlite":
        yield shutil.copy(request.getfixturevalue("empty_ledger"), tmp_path / "ledger.sqlite")
        return
    yield empty_address(request.getfixturevalue("postgresql"))


@pytest.fixture
def new_address(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str | Path]:
    """Returns an address without a ledger."""
    if backend == "sqlite":
        yield tmp_path / "new.sqlite"
        return
    server: Server = request.getfixturevalue("postgresql")
    name = f"new_{next(NUMBERS)}"
    yield server.create(name)
    server.drop(name)


@pytest.fixture
def ledger(address: str | Path, clock: SimulatedClock) -> Iterator[Ledger]:
    with Ledger.open(address, clock=clock) as ledger:
        yield ledger


@pytest.fixture
def run(ledger: Ledger) -> str:
    return ledger.runs.create("toy", {"seed": 0}, "digest", target_iterations=100).id


@pytest.fixture
def fence(ledger: Ledger, run: str) -> Fence:
    return ledger.leases.acquire(run, holder("first"), ttl_seconds=10)
