"""The environment of the libraries that YATT is compared with, `build/peers`, and programs that run there.

Consumes a program, which has no YATT beside it, and a request in plain values. Produces the program's answer. What it prints is
kept in a file: it is no part of a report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import progress
from ops import bootstrap

PYTHON = bootstrap.PEERS / "bin" / "python"
LINES = 20


def is_there() -> bool:
    """Returns True if the environment has been made, by `make peers` or by a benchmark."""
    return PYTHON.exists()


def make() -> None:
    """Makes the environment, unless it is there with the versions pinned now."""
    if not (is_there() and bootstrap.is_current(bootstrap.PEERS_STAMP)):
        progress("the peers' environment, build/peers")
        command = [sys.executable, str(bootstrap.ROOT / "ops" / "bootstrap.py"), "--peers"]
        subprocess.run(command, stdout=sys.stderr, check=True)


def answer_of(program: Path, request: Mapping[str, Any], folder: Path, processes: int = 1) -> Any:
    """Runs a program in the environment and returns its answer.

    program: a file that takes the paths of a request and of its answer, both JSON.
    folder: for what the program needs and says; it has no other home.
    processes: of which it consists; several are started by torch's launcher.

    Raises `RuntimeError` with the last lines that the program printed, if it fails.
    """
    asked = folder / "request.json"
    answer = folder / "answer.json"
    said = folder / "output"
    asked.write_text(json.dumps(request), encoding="utf-8")
    # PYTHONSAFEPATH leaves out the program's folder: folders of benchmarks hide modules of the standard library.
    surroundings = {"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    environment = {**surroundings, **dict.fromkeys(("HOME", "HF_HOME", "TMPDIR"), str(folder))}
    command: list[str | Path] = [PYTHON]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [program, asked, answer]
    with said.open("w", encoding="utf-8") as output:
        code = subprocess.run(command, env=environment, cwd=folder, stdout=output, stderr=output).returncode
    if code:
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
        raise RuntimeError("\n".join([f"{program.name} ended with {code}:", *lines]))
    return json.loads(answer.read_text(encoding="utf-8"))
