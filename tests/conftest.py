"""Setup shared by all tests: one torch thread, no telemetry, no settings or secrets from outside, no deadlines."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import matrix
from tests.grouping import VARIABLE, InOrder, sort_by_group
from tests.quick import is_long, needs_more, refuse_processes

if TYPE_CHECKING:
    from tests.recovery.nursery import Nursery

MIGRATED = Path(__file__).parent / "db" / "core"
"""Tests of how ledgers are migrated."""

# Set before any of our modules is imported; child processes inherit it.
os.environ.update(
    OMP_NUM_THREADS="1",
    DO_NOT_TRACK="true",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    HF_HUB_OFFLINE="1",
)
for name in (
    "YATT_HOME",
    "YATT_LEDGER",
    "YATT_RAY_ADDRESS",
    "PREFECT_API_URL",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_API_AUTH_STRING",
    "MLFLOW_TRACKING_URI",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
):
    os.environ.pop(name, None)

# A shell that starts pytest in the background ignores SIGINT, and every process started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis checks no deadlines: how long an example takes depends on what else the machine is doing.
settings.register_profile("untimed", deadline=None)
settings.register_profile("gate", deadline=None, max_examples=matrix.GATE_EXAMPLES)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out tests that need a process, server, ledger, Ray or training, or are long",
    )


def pytest_configure(config: pytest.Config) -> None:
    if "not verify" in config.getoption("markexpr"):
        matrix.leave_out_matrices()
        settings.load_profile("gate")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keeps `make quick` from importing the files it leaves out."""
    left_out = config.getoption("quick") and collection_path.match("test_*.py") and needs_more(collection_path)
    return True if left_out else None


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("quick") and not session.config.getoption("numprocesses", None):
        refuse_processes()


def pytest_xdist_setupnodes() -> None:
    # The workers inherit this variable.
    os.environ[VARIABLE] = str(Path(tempfile.mkdtemp(prefix="yatt-groups-")) / "groups.json")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InOrder:
    return InOrder(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage while tests are collected: imports leave a million objects, nearly all of which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    if config.getoption("quick"):
        long = [item for item in items if is_long(item.path, item.nodeid)]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    sort_by_group(items)


def pytest_collection_finish() -> None:
    """Exempts the million objects that imports created from garbage collection, which would rescan them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def empty_ledgers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes empty ledgers without migrating each, except in the tests of migrations and of what is done without a ledger."""
    if "db.core.migrate" not in sys.modules or MIGRATED in request.path.parents:
        yield
        return
    from tests.empty_ledgers import made_from_statements

    with made_from_statements():
        yield


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Forgets the secrets that a test resolves, which would be replaced in the output of later tests of its process."""
    from yatt_core import logs

    before = set(logs._kept)
    yield
    logs._kept.intersection_update(before)


@pytest.fixture(scope="session")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which tests arm failpoints for the drivers and actors that share the services."""
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="session")
def service_environment(tmp_path_factory: pytest.TempPathFactory, failpoints: Path) -> Iterator[Mapping[str, str]]:
    """Starts one Ray head, whose actors have failpoints, and one Prefect server; yields their environment."""
    from tests.services import failpoints_of_actors, start_shared_services
    from yatt_core.supervisor.client import stop_supervisor

    folder = tmp_path_factory.mktemp("services")
    try:
        yield start_shared_services(folder, failpoints_of_actors(failpoints))
    finally:
        stop_supervisor(folder)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Nursery]:
    """Yields a process that forks drivers attached to these services."""
    from tests.recovery.nursery import Nursery

    nursery = Nursery(tmp_path_factory.mktemp("drivers"), service_environment)
    yield nursery
    nursery.close()
