"""A folder in place of the inputs of simulated runs, which nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "prompts").write_text("none")
    return folder
