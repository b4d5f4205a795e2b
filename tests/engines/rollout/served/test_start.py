"""An engine's process finds the package of its actor, and nothing that lies beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yatt_core
from yatt_core.engines.rollout.served import start

LOOK = """
import importlib.util, json, runpy, sys
runpy.run_path(sys.argv[1], run_name="__mp_main__")
import yatt_core.errors
beside = [name for name in ("flows", "db", "ops", "prefect", "pydantic") if importlib.util.find_spec(name)]
print(json.dumps([yatt_core.errors.__file__, beside]))
"""


def test_nothing_beside_the_package_can_be_imported() -> None:
    command = [sys.executable, "-I", "-S", "-c", LOOK, start.__file__]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found == [str(Path(yatt_core.__file__).parent / "errors.py"), []]
