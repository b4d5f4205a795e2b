"""Tests that look inside an engine run in its process, file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.rollout.vllm.running import INSIDE, run_inside
from tests.needs import NEEDS_VLLM

pytestmark = [NEEDS_VLLM, pytest.mark.verify, pytest.mark.timeout(900)]


@pytest.mark.parametrize("file", [path.name for path in sorted(INSIDE.glob("test_*.py"))])
def test_inside(file: str, tmp_path: Path) -> None:
    run_inside(file, tmp_path)
