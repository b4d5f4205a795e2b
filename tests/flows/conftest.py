"""Drivers as real processes on shared services, with a home in the test's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.tools import Driver
from tests.recovery.nursery import Nursery


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery) -> Driver:
    return Driver(tmp_path / "runs", nursery)
