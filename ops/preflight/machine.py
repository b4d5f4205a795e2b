"""Checks this machine and the home folder: can a run work here? `yatt doctor` prints the results, with remedies.

Does not import torch, Ray or Prefect: versions are read from package metadata, and the libraries tried in other processes.
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
from ops.preflight.library_trial import try_libraries
from ops.preflight.verdicts import Check, CheckStatus
from ops.presentation.words import moment, size
from yatt_core.counting import many
from yatt_core.engine_environments import ENGINES, VLLM, find_environment
from yatt_core.errors import ConfigurationError

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
OPTIONAL = ("mlflow", "matplotlib", "megatron-core", "peft", "s3fs")
ENOUGH_DISK = 5 << 30
LITTLE_DISK = 1 << 30
ENOUGH_SHARED_MEMORY = 512 << 20
ENOUGH_MEMORY = 4 << 30


def look_at_python(_: Home) -> Iterator[Check]:
    """Checks the version of Python and the kind of machine."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        yield Check("python", CheckStatus.FAIL, found, "YATT runs on Linux")
    else:
        yield Check("python", CheckStatus.OK, found)


def look_at_libraries(_: Home) -> Iterator[Check]:
    """Lists the installed libraries; optional ones only if they are installed."""
    from importlib.metadata import PackageNotFoundError, version

    missing = []
    versions = []
    for name in (*LIBRARIES, *OPTIONAL):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing += [name] if name in LIBRARIES else []
    if missing:
        yield Check("libraries", CheckStatus.FAIL, f"missing: {', '.join(missing)}", "reinstall yatt: pip install yatt")
    yield Check("libraries", CheckStatus.OK, ", ".join(versions))


def look_at_engines(_: Home) -> Iterator[Check]:
    """Looks for vLLM's environment, which is needed for `rollout.engine.kind: vllm` only."""
    try:
        found = find_environment(VLLM, None)
    except ConfigurationError as error:
        meant = Path(sys.prefix) / ENGINES / VLLM.name
        if meant.exists() or meant.is_symlink():
            yield Check(VLLM.name, CheckStatus.WARN, "its environment is of no use", str(error))
        else:
            yield Check(VLLM.name, CheckStatus.OK, "not installed; rollout.engine.kind: vllm needs it (docs/vllm.md)")
    else:
        yield Check(VLLM.name, CheckStatus.OK, f"{found.package} {found.version} in {found.folder}")


def look_at_processors(_: Home) -> Iterator[Check]:
    """Checks the number of usable cores and the free memory."""
    import psutil

    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().available
    found = f"{cores} cores, {size(memory)} of memory free"
    if memory < ENOUGH_MEMORY:
        yield Check(
            "processor", CheckStatus.WARN, found, f"a small run needs about {size(ENOUGH_MEMORY)}; close other programs"
        )
    else:
        yield Check("processor", CheckStatus.OK, found)


def look_at_home(home: Home) -> Iterator[Check]:
    """Checks that the home folder is writable and that its disk has enough space."""
    from yatt_core.errors import ConfigurationError

    folder = existing_parent(home.folder)
    try:
        check_folder(home.folder)
    except ConfigurationError as error:
        found, _, remedy = str(error).rpartition("; ")
        yield Check("home", CheckStatus.FAIL, found, remedy)
    else:
        yield Check(
            "home", CheckStatus.OK, f"{home.folder}{'' if home.folder.exists() else ' (created by the first run)'}"
        )
    free = shutil.disk_usage(folder).free
    if free < ENOUGH_DISK:
        verdict = CheckStatus.FAIL if free < LITTLE_DISK else CheckStatus.WARN
        yield Check("disk", verdict, f"{size(free)} free", "free some space, or choose another disk with --home")
    else:
        yield Check("disk", CheckStatus.OK, f"{size(free)} free")


def look_at_sockets(home: Home) -> Iterator[Check]:
    """Checks that Ray's Unix sockets can be reached: if the path is long, this works only through /proc."""
    from yatt_core.cluster.ray_head import FOLDER_LIMIT, ray_folder, socket_folder

    folder = ray_folder(home.run_folder("any-run"))
    found = f"the path of Ray's folder takes about {len(os.fsencode(folder))} bytes, sockets allow {FOLDER_LIMIT}"
    if socket_folder(folder) == str(folder):
        yield Check("socket paths", CheckStatus.OK, found)
    elif Path("/proc/self/cwd").is_dir():
        yield Check("socket paths", CheckStatus.OK, f"{found}; reached through /proc")
    else:
        yield Check(
            "socket paths", CheckStatus.FAIL, found, "mount /proc, or choose a home with a shorter path with --home"
        )


def look_at_loopback(_: Home) -> Iterator[Check]:
    """Checks that ports on the loopback address can be opened and reached."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        yield Check(
            "loopback", CheckStatus.FAIL, f"127.0.0.1: {error}", "allow processes to listen and connect on 127.0.0.1"
        )
    else:
        yield Check("loopback", CheckStatus.OK, "ports on 127.0.0.1 can be opened and reached")


def look_at_shared_memory(_: Home) -> Iterator[Check]:
    """Checks the space in /dev/shm, where Ray keeps the objects that actors exchange."""
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < ENOUGH_SHARED_MEMORY:
        remedy = "increase it, for example with docker run --shm-size=1g; otherwise Ray uses the disk, which is slow"
        yield Check("shared memory", CheckStatus.WARN, f"{size(free)} free in {folder}", remedy)
    else:
        yield Check("shared memory", CheckStatus.OK, f"{size(free)} free in {folder}")


def look_at_ledger(home: Home) -> Iterator[Check]:
    """Checks that the ledger can be reached and is at a known version."""
    from db.core.errors import LedgerError, LedgerVersionError
    from db.ledger import Ledger
    from yatt_core.logs import redact

    try:
        address = redact(home.ledger)
        file = ledger_file(home)
        if file is not None and not file.exists():
            yield Check("ledger", CheckStatus.OK, f"{address} (created by the first run)")
            return
        with Ledger.open(home.ledger, migrate=False) as ledger:
            runs = len(ledger.runs.list())
    except LedgerVersionError as error:
        yield Check(
            "ledger", CheckStatus.FAIL, redact(str(error)), "use the version of YATT that wrote it, or a newer one"
        )
    except LedgerError as error:
        yield Check(
            "ledger", CheckStatus.FAIL, redact(str(error)), "check the address in $YATT_LEDGER and the database"
        )
    else:
        yield Check("ledger", CheckStatus.OK, f"{address}, {many(runs, 'run')}")


def look_at_maintenance(home: Home) -> Iterator[Check]:
    """Says what the last maintenance found; nothing if there was none."""
    from flows.maintenance.record import read_results
    from yatt_core.errors import InfrastructureError

    try:
        results = read_results(home)
    except InfrastructureError as error:
        yield Check(
            "maintenance", CheckStatus.WARN, str(error), "remove the file; the next maintenance writes a new one"
        )
        return
    for last in results[:1]:
        when = moment(round(1000 * last.began_at))
        if last.ok:
            yield Check("maintenance", CheckStatus.OK, f"{when}: all well")
        else:
            yield Check(
                "maintenance", CheckStatus.WARN, f"{when}: {last.trouble}", "mend what it names, then: yatt maintain"
            )


LOOKS: tuple[Callable[[Home], Iterator[Check]], ...] = (
    look_at_python,
    look_at_libraries,
    try_libraries,
    look_at_engines,
    look_at_processors,
    look_at_gpus,
    look_at_home,
    look_at_sockets,
    look_at_loopback,
    look_at_shared_memory,
    look_at_ledger,
    look_at_maintenance,
)
