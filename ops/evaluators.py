"""Starts the processes that evaluate a run's checkpoints on the suites of its spec, beside the driver.

Consumes `evaluation.suites`; produces a process for each, which is `yatt evaluate --follow`, and a log in the run's folder.
A process outlives the driver until all kept checkpoints are evaluated; one that still runs has a lease that a second one lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ops.driver_process import GPUS_VARIABLE, OF_THE_GROUP, open_log

if TYPE_CHECKING:
    from flows.run.home import Home
    from yatt_core.spec import RunSpec


def start_evaluators(home: Home, run: str, spec: RunSpec) -> list[int]:
    """Starts the processes and returns their ids."""
    started = []
    for number, suite in enumerate(spec.evaluation.suites):
        environment = {name: value for name, value in os.environ.items() if name not in OF_THE_GROUP}
        if suite.devices is not None:
            environment[GPUS_VARIABLE] = suite.devices
        with open_log(home, run, f"evaluate-{number}-{Path(suite.path).stem}.log") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"{__package__}.cli.main", "--home", str(home.folder)),
                    *("evaluate", "--suite", suite.path, "--follow", "--", run),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process.pid)
    return started
