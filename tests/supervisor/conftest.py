"""Run folders whose supervisors never outlive a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.support import supervised
from yatt_core.supervisor.client import stop_supervisor


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_supervisor(tmp_path)
    assert supervised(tmp_path) == []
