"""Runs tests with the Python of vLLM's environment, which has what they need beside vLLM."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from yatt_core.engine_environments import VLLM, find_environment

INSIDE = Path(__file__).parent / "inside"
ROOT = Path(__file__).parents[4]


def run_inside(file: str, folder: Path, **variables: str) -> None:
    """Runs the tests of a file in `inside`, which must pass, and must be at least one."""
    command = [
        str(find_environment(VLLM, None).python), "-m", "pytest", str(INSIDE / file), "-c", str(INSIDE / "pytest.ini"),
        f"--rootdir={ROOT}", f"--confcutdir={INSIDE}", f"--basetemp={folder / 'inside'}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9][0-9]* passed", done.stdout, re.MULTILINE), done.stdout[-2000:]
