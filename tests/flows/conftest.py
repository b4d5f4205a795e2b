"""A home folder in the test's own folder, and drivers as real processes on shared services."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.services import ROOT, start_shared_services
from yatt_core.cluster.client import stop_supervisor


@pytest.fixture(scope="session")
def service_environment() -> Iterator[Mapping[str, str]]:
    # Not pytest's own folder: the paths of Ray's sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="yt") as name:
        folder = Path(name)
        try:
            yield start_shared_services(folder)
        finally:
            stop_supervisor(folder)


@pytest.fixture
def driver(tmp_path: Path, service_environment: Mapping[str, str]) -> Driver:
    return Driver(tmp_path / "runs", service_environment)
