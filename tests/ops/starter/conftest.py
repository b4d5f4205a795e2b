"""Fixtures of the tests of first specs: model folders, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ops.starter.model_folders import WITH_TOOLS, make_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "tools": {"template": WITH_TOOLS}, "vision": {"vision": True}}

    def made(kind: str) -> Path:
        return folder / kind if (folder / kind).exists() else make_folder(folder / kind, **kinds[kind])

    return made
