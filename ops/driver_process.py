"""Starts a driver as a background process in its own session, which outlives the process that starts it.

Consumes the home folder and a run; produces the process, which is `yatt resume`, and a log in the run's folder with its
output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

from flows.prefect_io.prefect_server import SERVER_PASSWORD_VARIABLE
from yatt_core.supervisor.state import MARK_VARIABLE

if TYPE_CHECKING:
    from flows.run.home import Home
    from flows.run.shared_cluster import SharedCluster

OF_THE_GROUP = (MARK_VARIABLE, SERVER_PASSWORD_VARIABLE)
"""Environment variables not passed to a driver.

The mark would make the driver part of the service group and end with it, and a Prefect server that the driver starts itself
needs no password. The password that clients of the group's server send is passed on.
"""

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


def open_log(home: Home, run: str, name: str) -> IO[bytes]:
    """Opens a log in a run's folder for appending; creates the folder, which may only exist in an object store."""
    folder = home.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).open("ab")


def start_driver_process(
    home: Home,
    run: str,
    log: IO[bytes],
    accept_drift: bool,
    until: int | None = None,
    devices: str | None = None,
    identity: Mapping[str, str] = MappingProxyType({}),
    cluster: SharedCluster | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `yatt resume`, whose output goes to the log; neither Ctrl-C in the terminal nor its end reaches it.

    until: the iteration after which it stops; None for the run's target.
    devices: numbers of the GPUs that it may use, separated by commas; None for all.
    identity: variables with which it acts as somebody; empty: as this account.
    cluster: whose services it uses, and whose lock it holds as long as it lives; None for services of its own.
    """
    options = ["--accept-drift"] if accept_drift else []
    options += [] if until is None else ["--until", str(until)]
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_GROUP} | dict(identity)
    if devices is not None:
        environment[GPUS_VARIABLE] = devices
    if cluster is not None:
        environment |= cluster.variables
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.cli.main", "--home", str(home.folder), "resume", *options, "--", run],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=() if cluster is None else (cluster.lock.fileno(),),
    )
