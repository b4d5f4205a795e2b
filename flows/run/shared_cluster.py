"""A Ray head and a Prefect server that the drivers of one command use one after another, each for another run.

A command, such as `yatt sweep`, takes a folder of the home for each run that it drives at a time (`taken_cluster`) and names it
to the drivers in an environment variable; their services are then in that folder instead of the run's (`services_folder`). The
command and its drivers hold a lock on the folder. Once none of them is alive, whoever takes the folder next ends what is left in
it and begins anew. A note in the run's folder says which cluster it used last.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flows.run.home import Home
from yatt_core.durable import make_folder, refusals, remove_whole_folder, write_json
from yatt_core.file_lock import file_lock
from yatt_core.supervisor.client import Heartbeat, stop_supervisor

CLUSTER_VARIABLE = "YATT_SHARED_CLUSTER"
"""The folder of the cluster that a driver is to use, absolute."""
LOCK_SUFFIX = ".lock"
NOTE = "cluster.json"
STOP_SECONDS = 20.0
NO_TERM = 0
"""The term in the heartbeats of a cluster: all of its drivers and the command beat, whatever their terms."""


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A cluster that this process holds.

    lock: the open file whose descriptor drivers inherit.
    """

    folder: Path
    lock: IO[str]

    @property
    def variables(self) -> dict[str, str]:
        """What a driver of the cluster needs in its environment."""
        return {CLUSTER_VARIABLE: str(self.folder)}


@contextmanager
def taken_cluster(home: Home) -> Iterator[SharedCluster]:
    """Provides a cluster that no other process of this host uses, empty, and keeps it alive between drivers.

    Afterwards, the cluster ends and its folder is deleted, unless a driver still uses it.
    """
    make_folder(home.clusters)
    folder, lock = _take(home)
    try:
        _clear(folder)
        make_folder(folder / "logs")
        with Heartbeat(folder, NO_TERM):
            yield SharedCluster(folder, lock)
    finally:
        lock.close()
        _clear_unless_used(folder)


def given_cluster() -> Path | None:
    """Returns the folder of the cluster that the environment names for this process's run; None if it names none."""
    given = os.environ.get(CLUSTER_VARIABLE)
    return Path(given) if given else None


def services_folder(run_folder: Path) -> Path:
    """Returns the folder in which the newest driver's services are or were: the cluster's, or the run's."""
    noted = _noted(run_folder)
    return run_folder if noted is None else noted


def use_folder(run_folder: Path, cluster: Path | None, term: int) -> None:
    """Notes where the services of a run will be, and ends those that an earlier driver has left elsewhere.

    cluster: the folder of a shared cluster; None for the run's own services.
    term: of this driver; services that a later driver uses are left alone.
    """
    before = _noted(run_folder)
    if cluster is not None:
        write_json(run_folder / NOTE, {"folder": os.path.relpath(cluster, run_folder)})
        stop_supervisor(run_folder, STOP_SECONDS, term)
    elif before is not None:
        (run_folder / NOTE).unlink(missing_ok=True)
    if before is not None and before != cluster:
        _end_unless_used(before)


def end_services(run_folder: Path, term: int) -> None:
    """Ends the services that drivers of a run have left: its own, and a cluster that nobody uses any more.

    In a cluster that others use, actors without a driver end by themselves.
    """
    stop_supervisor(run_folder, STOP_SECONDS, term)
    cluster = _noted(run_folder)
    if cluster is not None:
        _end_unless_used(cluster)


def _noted(run_folder: Path) -> Path | None:
    try:
        note = json.loads((run_folder / NOTE).read_text())
    except FileNotFoundError:
        return None
    return Path(os.path.normpath(run_folder / note["folder"]))


def _take(home: Home) -> tuple[Path, IO[str]]:
    """Returns the first folder of this host that no other process holds, and its open lock."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
    number = 0
    while True:
        folder = home.clusters / f"{host}-{number}"
        with refusals(f"{_lock_of(folder)}: cannot be locked"):
            lock = _lock_of(folder).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
            continue
        return folder, lock


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK_SUFFIX)


def _clear_unless_used(folder: Path) -> None:
    with file_lock(_lock_of(folder)) as alone:
        if alone:
            _clear(folder)


def _end_unless_used(folder: Path) -> None:
    if not folder.exists():
        return
    with file_lock(_lock_of(folder)) as alone:
        if alone:
            stop_supervisor(folder, STOP_SECONDS)


def _clear(folder: Path) -> None:
    """Ends what is left in a cluster's folder, and deletes it. The caller must hold its lock."""
    stop_supervisor(folder, STOP_SECONDS)
    remove_whole_folder(folder)
