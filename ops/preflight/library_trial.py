"""Tries the libraries that a run needs, each in a process of its own: installed together, they may not work together.

A library that is newer than what another one, or YATT, knows is installed without a word and fails at its first use.
Consumes nothing; produces a check for each trial, with the last line that a failed one has written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ops.preflight.verdicts import Check, CheckStatus
from yatt_core.logs import redact

if TYPE_CHECKING:
    from flows.run.home import Home

TRIAL_SECONDS = 180.0
"""How long a library may take; the first import after an installation compiles its modules."""
AT_ONCE = 2
OPS = __package__.rpartition(".")[0]
REMEDY = "install yatt again into an empty environment: pip install yatt; a checkout: make setup"


@dataclass(frozen=True, slots=True)
class LibraryTrial:
    """Something that is tried.

    name: what it is, as the check is called.
    program: Python that ends without an error if it works.
    """

    name: str
    program: str


TRIALS = (
    LibraryTrial("torch", "import torch; torch.ones(2).sum()"),
    LibraryTrial("transformers", "from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer"),
    LibraryTrial("ray", "import ray; from ray._raylet import GcsClient; import yatt_core.run_actors.run_actors"),
    LibraryTrial("prefect's server", "from prefect.server.api.server import create_app; create_app()"),
    LibraryTrial("mlflow", "from mlflow.tracking import MlflowClient"),
    LibraryTrial("dashboard", f"import {OPS}.dashboard.app"),
)


def try_libraries(_: Home) -> Iterator[Check]:
    """Tries each library."""
    with ThreadPoolExecutor(AT_ONCE) as together, tempfile.TemporaryDirectory(prefix="yatt-doctor-") as folder:
        yield from together.map(lambda trial: tried(trial, Path(folder)), TRIALS)


def tried(trial: LibraryTrial, folder: Path, seconds: float = TRIAL_SECONDS) -> Check:
    """Returns what came of a trial. folder: for the files that libraries write when they begin."""
    environment = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "MPLCONFIGDIR": str(folder / "matplotlib")}
    command = [sys.executable, "-c", trial.program]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(trial.name, CheckStatus.FAIL, f"does not begin within {seconds:g} s", REMEDY)
    if done.returncode == 0:
        return Check(trial.name, CheckStatus.OK, "works")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return Check(
        trial.name, CheckStatus.FAIL, redact(said[-1].strip() if said else f"exit code {done.returncode}"), REMEDY
    )
