"""The inputs that all simulated soups begin with, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.soups.support import RUN
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import parse_spec


@pytest.fixture(scope="package")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    materialise(parse_spec(RUN, "run"), folder)
    return folder / INPUTS
