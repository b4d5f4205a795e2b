"""A Ray head and a Prefect server that drivers use one after another, each for another run.

The owner takes a folder of the home for each run that is driven at a time (`taken_cluster`); the services of the drivers to
which it gives the folder are then there instead of in the run's (`services_folder`). A command such as `yatt sweep` owns what its
drivers use, and names the folder to them in an environment variable. The service group lends its clusters to drivers that ask
(`flows.run.lending`). Owner and drivers hold a lock on the folder. Once none of them is alive, whoever takes the folder next ends
what is left in it and begins anew. A note in the run's folder says which cluster it used last.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flows.run.home import Home
from yatt_core.durable import make_folder, refusals, remove_whole_folder, write_json
from yatt_core.errors import InfrastructureError
from yatt_core.file_lock import file_lock
from yatt_core.supervisor.client import Heartbeat, stop_supervisor
from yatt_core.supervisor.state import SupervisorFiles

CLUSTER_VARIABLE = "YATT_SHARED_CLUSTER"
"""The descriptor of the open lock, and the absolute folder of the cluster that a driver is to use: `NUMBER:FOLDER`."""
LOCK_SUFFIX = ".lock"
NOTE = "cluster.json"
STOP_SECONDS = 20.0
STALE_SECONDS = 24 * 3600.0
"""After so long without a heartbeat, a cluster of another host is taken for abandoned."""
NO_TERM = 0
"""The term in the heartbeats of a cluster: all of its drivers and the command beat, whatever their terms."""

log = logging.getLogger("yatt_core.flow")


@dataclass(slots=True)
class SharedCluster:
    """A cluster that this process holds.

    lock: the open file whose descriptor drivers inherit.
    has_failed: True if a driver ended badly or was killed, so that its logs are kept until the next command takes the folder.
    """

    folder: Path
    lock: IO[str]
    has_failed: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What a driver of the cluster needs in its environment, beside the descriptor of the lock."""
        return {CLUSTER_VARIABLE: f"{self.lock.fileno()}:{self.folder}"}

    def ended_badly(self) -> None:
        """Ends the services, because a driver may have left actors that hold devices; the next driver starts others."""
        self.has_failed = True
        stop_supervisor(self.folder, STOP_SECONDS)


@contextmanager
def taken_cluster(home: Home) -> Iterator[SharedCluster]:
    """Provides a cluster that no other process of this host uses, empty, and keeps it alive between drivers.

    Afterwards, the cluster ends and its folder is deleted, unless a driver still uses it.
    """
    make_folder(home.clusters)
    clear_abandoned(home)
    cluster = _take(home)
    try:
        with Heartbeat(cluster.folder, NO_TERM):
            yield cluster
    finally:
        left(cluster)


def left(cluster: SharedCluster) -> None:
    """Closes the lock of a cluster, and ends the cluster unless another process holds it."""
    cluster.lock.close()
    try:
        _clear_unless_used(cluster.folder, keep_files=cluster.has_failed)
    except InfrastructureError as error:
        # What the process has come to is more important; whoever takes the folder next tries again.
        log.warning("%s", error)


def clear_abandoned(home: Home) -> None:
    """Deletes what killed owners of this host have left, and clusters of other hosts that were silent for a day."""
    if not home.clusters.exists():
        return
    for folder in sorted(home.clusters.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and (_is_of_this_host(folder) or _is_stale(folder)):
            try:
                _clear_unless_used(folder)
            except InfrastructureError as error:
                log.warning("%s", error)


def given_cluster() -> Path | None:
    """Returns the folder of the cluster that this process is to use; None if there is none.

    The processes that a driver starts have its environment, but not the lock, and use services of their own.
    """
    number, _, given = os.environ.get(CLUSTER_VARIABLE, "").partition(":")
    folder = Path(given)
    try:
        is_held = os.path.samestat(os.fstat(int(number)), _lock_of(folder).stat())
    except (ValueError, OSError):
        return None
    return folder if is_held else None


def services_folder(run_folder: Path) -> Path:
    """Returns the folder in which the newest driver's services are or were: the cluster's, or the run's."""
    noted = noted_folder(run_folder)
    return run_folder if noted is None else noted


def noted_folder(run_folder: Path) -> Path | None:
    """Returns the folder of the cluster that the newest driver of a run used; None if the run had services of its own."""
    folder = _note(run_folder).get("folder")
    return None if folder is None else Path(os.path.normpath(run_folder / folder))


def use_folder(run_folder: Path, cluster: Path | None, term: int) -> None:
    """Notes where the services of a run will be, and ends those that an earlier driver has left elsewhere.

    cluster: the folder of a shared cluster; None for the run's own services.
    term: of this driver; what a later driver has noted or uses is left alone.
    """
    note = _note(run_folder)
    if note.get("term", -1) > term:
        return
    before = noted_folder(run_folder)
    if cluster is not None:
        write_json(run_folder / NOTE, {"folder": os.path.relpath(cluster, run_folder), "term": term})
        stop_supervisor(run_folder, STOP_SECONDS, term)
    elif before is not None:
        write_json(run_folder / NOTE, {"folder": None, "term": term})
    if before is not None and before != cluster:
        _end_unless_used(before)


def end_services(run_folder: Path, term: int) -> None:
    """Ends the services that drivers of a run have left: its own, and a cluster that nobody uses any more.

    A command ends the services of its cluster as soon as a driver has ended badly, so what others use has no actors of this run.
    """
    stop_supervisor(run_folder, STOP_SECONDS, term)
    cluster = noted_folder(run_folder)
    if cluster is not None:
        _end_unless_used(cluster)


def _note(run_folder: Path) -> dict[str, Any]:
    """Returns the note in a run's folder; empty if there is none."""
    try:
        note: dict[str, Any] = json.loads((run_folder / NOTE).read_text())
    except FileNotFoundError:
        return {}
    return note


def _take(home: Home) -> SharedCluster:
    """Returns an empty cluster in the first folder of this host that no other process holds and that can be cleared."""
    number = 0
    while True:
        folder = home.clusters / f"{_host()}-{number}"
        number += 1
        lock = _locked(folder)
        if lock is None:
            continue
        try:
            _clear(folder)
        except InfrastructureError as error:
            log.warning("%s; another folder is used", error)
            lock.close()
            continue
        make_folder(folder / "logs")
        return SharedCluster(folder, lock)


def _locked(folder: Path) -> IO[str] | None:
    """Returns the open lock of a folder; None if another process holds it."""
    with refusals(f"{_lock_of(folder)}: cannot be locked"):
        lock = _lock_of(folder).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
    return lock


def _host() -> str:
    """Returns this host's name as far as it fits into a folder's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


def _is_of_this_host(folder: Path) -> bool:
    return folder.name.rpartition("-")[0] == _host()


def _is_stale(folder: Path) -> bool:
    try:
        heard = SupervisorFiles.of(folder).driver.stat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() - heard > STALE_SECONDS


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK_SUFFIX)


def _clear_unless_used(folder: Path, keep_files: bool = False) -> None:
    with file_lock(_lock_of(folder)) as alone:
        if alone and keep_files:
            stop_supervisor(folder, STOP_SECONDS)
        elif alone:
            _clear(folder)


def _end_unless_used(folder: Path) -> None:
    """Ends the services of a cluster of this host that nobody holds; those of other hosts end by themselves."""
    if folder.exists() and _is_of_this_host(folder):
        _clear_unless_used(folder, keep_files=True)


def _clear(folder: Path) -> None:
    """Ends what is left in a cluster's folder, and deletes it. The caller must hold its lock."""
    stop_supervisor(folder, STOP_SECONDS)
    remove_whole_folder(folder)
