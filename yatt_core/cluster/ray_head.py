"""Ray's head as a service of the supervisor: on loopback, with a token and all its files in the run folder.

Consumes a run folder; produces a `ServiceSpec` and the token file. The settings:
`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` makes every listener use loopback. Ports that Ray fixes by default are
chosen freely, so that several heads can run on one machine. `RAY_task_events_report_interval_ms=0` turns off
the record of calls, which would take 4 KB for each of the last 100,000. The autoscaler monitor, the log monitor, the
client server and the API server are left out (`head.py`). Nothing would use these five.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from yatt_core.cluster import head
from yatt_core.durable import make_folder
from yatt_core.spec.run import RunSpec
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import SupervisorFiles

SERVICE_NAME = "ray"
SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
FOLDER_LIMIT = SOCKET_PATH_LIMIT - len(LONGEST_SOCKET) - 1
SHORT_CUT = "/proc/{supervisor}/cwd/ray"
"""The run folder as seen from the supervisor's working folder, for as long as the supervisor is running."""
DEFAULT_OBJECT_STORE_BYTES = 256 << 20
SPARE_BYTES = 128 << 20
"""What receipts and objects that are about to be dropped take in an object store in addition."""
READY_TEXT = "Ray runtime started."
IMPORT = "--import="
IMPORT_TORCH = "--import-torch="
OF_TORCH = f"{IMPORT_TORCH}torch"
STORE = "--object-store-memory="
OF_ACTORS = ("yatt_core.collection.collector", "yatt_core.engines.registry", "yatt_core.checkpoints.writer")
"""Modules that the actors of every run import, and that do not import Ray."""


def ray_folder(run_folder: Path) -> Path:
    """Returns the folder of Ray's own files."""
    return SupervisorFiles.of(run_folder).root / "ray"


def ray_token_file(run_folder: Path) -> Path:
    """Returns the path of the head's token."""
    return ray_folder(run_folder) / "token"


def ray_environment(run_folder: Path) -> Mapping[str, str]:
    """Returns the environment that the head and every process that connects to it need."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(ray_token_file(run_folder)),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_task_events_report_interval_ms": "0",
        "DO_NOT_TRACK": "true",
    }


def store_bytes(spec: RunSpec) -> int:
    """Returns the size of the object store of a run's own head: requests and answers in flight.

    It is large enough for everything that the run ever has in it, so that it never spills. Memory is taken only as objects come.
    """
    controllers = spec.controllers
    return controllers.count * controllers.bytes_in_flight + SPARE_BYTES


def ray_head_service(
    run_folder: Path,
    cpus: int | None = None,
    object_store_bytes: int = DEFAULT_OBJECT_STORE_BYTES,
    modules: Sequence[str] = (),
    torch_modules: Sequence[str] = (),
) -> ServiceSpec:
    """Returns the service `ray`, whose address is passed to `connect_ray`. Creates the folder and the token.

    The service's output goes to `logs/ray.log`.

    cpus: schedulable cores; by default those that this process may use.
    modules: modules that workers have from the start, beside those of all actors.
    torch_modules: further ones, which import torch; workers have them where there is no GPU.
    """
    folder = ray_folder(run_folder)
    make_folder(folder)
    _make_token(ray_token_file(run_folder))
    return ServiceSpec(
        name=SERVICE_NAME,
        argv=(
            sys.executable,
            "-m",
            head.__name__,
            *(f"{IMPORT}{module}" for module in (*OF_ACTORS, *modules)),
            *(f"{IMPORT_TORCH}{module}" for module in torch_modules),
            "--",
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            "--port={port}",
            "--dashboard-agent-listen-port=0",
            "--dashboard-agent-grpc-port=0",
            "--include-dashboard=false",
            "--include-log-monitor=false",
            "--no-monitor",
            "--disable-usage-stats",
            f"--temp-dir={socket_folder(folder)}",
            f"--num-cpus={cpus or len(os.sched_getaffinity(0))}",
            f"{STORE}{object_store_bytes}",
        ),
        environment=ray_environment(run_folder),
        ready=f"log:{READY_TEXT}",
        log_file=str(run_folder.resolve() / "logs" / "ray.log"),
        stop_seconds=1.0,
    )


def head_covers(served: ServiceSpec, needed: ServiceSpec) -> bool:
    """Returns True if a head that is up will do for a run that would start another one.

    Its object store may be larger. Its workers may import other modules ahead, but they must have torch if the run's would.
    """
    if OF_TORCH in needed.argv and OF_TORCH not in served.argv:
        return False
    if _store_of(served) < _store_of(needed):
        return False
    return replace(served, argv=_kept(served)) == replace(needed, argv=_kept(needed))


def _store_of(head_service: ServiceSpec) -> int:
    """Returns the bytes of a head's object store."""
    return next(int(each.removeprefix(STORE)) for each in head_service.argv if each.startswith(STORE))


def _kept(head_service: ServiceSpec) -> tuple[str, ...]:
    """Returns the options in which two heads must agree."""
    return tuple(each for each in head_service.argv if not each.startswith((IMPORT, IMPORT_TORCH, STORE)))


def socket_folder(folder: Path) -> str:
    """Returns Ray's folder in a form short enough for Unix sockets below it, however deep the run folder is."""
    return str(folder) if len(os.fsencode(folder)) <= FOLDER_LIMIT else SHORT_CUT


def _make_token(file: Path) -> None:
    """Creates the token if it does not exist; only its owner can read it."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_hex(32))
