"""Runs Ray's head without two servers that nothing of a run uses, and with a fork server beside it, which starts the workers.

`python -m yatt_core.cluster.head [--import MODULE ...] [--import-torch MODULE ...] -- OPTIONS` takes the options of
`ray start`. Ray's client server is left out: drivers are part of the cluster. So is its API server, which
`--include-dashboard=false` leaves running with one module that reports usage; Ray would wait for it before it starts the raylet.
Ray has no options for that, so its functions are replaced in this process.

The fork server is a child of this process and in its session: whatever ends the head ends it and the workers too. A server that
is lost is replaced; until then Ray starts workers by itself. Modules that import torch are not imported ahead on a machine with
GPUs: a process that has looked for them cannot be copied into one that uses them.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import ModuleType

from yatt_core.cluster import fork_server, worker_start
from yatt_core.cluster.gpus import local_gpus

SOCKET = "fork_server"
"""Name of the socket in Ray's folder."""
RESTART_SECONDS = 1.0
"""Before a server that is lost is replaced."""
SOON_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 600.0

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> None:
    """Starts the server, then becomes Ray's head."""
    parser = argparse.ArgumentParser(description="Runs Ray's head with a fork server beside it.")
    parser.add_argument("--import", dest="modules", action="append", default=[], help="what every worker imports")
    parser.add_argument("--import-torch", dest="torch", action="append", default=[], help="the same; imports torch")
    parser.add_argument("options", nargs="+", help="the options of `ray start`, after --")
    given = parser.parse_args(arguments)
    folder = next(option.partition("=")[2] for option in given.options if option.startswith("--temp-dir="))
    socket = Path(folder) / SOCKET
    modules = [*given.modules, *([] if local_gpus() else given.torch)]
    Thread(target=keep_server, args=(socket, modules), name="fork-server", daemon=True).start()
    use_server(socket)
    from ray.scripts import scripts

    leave_out_client_server(scripts)
    leave_out_api_server()
    sys.argv = ["ray", "start", *given.options]
    scripts.main()


def keep_server(path: Path, modules: Sequence[str]) -> None:
    """Keeps a fork server running for the life of this process; one that ends soon is started again less and less often."""
    pause = RESTART_SECONDS
    while True:
        began = time.monotonic()
        code = start_server(path, modules).wait()
        lived = time.monotonic() - began
        pause = RESTART_SECONDS if lived > SOON_SECONDS else min(2 * pause, LONGEST_PAUSE_SECONDS)
        log.warning("the fork server ended with %d; another starts in %g s", code, pause)
        time.sleep(pause)


def start_server(path: Path, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the fork server, which ends when this process does."""
    imports = [f"--import={module}" for module in modules]
    command = [sys.executable, "-m", fork_server.__name__, "--socket", os.fspath(path), *imports]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def use_server(path: Path) -> None:
    """Has Ray, in this process, start workers through the server on the socket."""
    import ray
    from ray._private import ray_constants

    scripts = Path(ray.__file__).parent / "_private" / "workers"
    os.environ[worker_start.SOCKET_VARIABLE] = os.fspath(path)
    os.environ[worker_start.RAY_SCRIPT_VARIABLE] = os.fspath(scripts / ray_constants.SETUP_WORKER_FILENAME)
    # Ray joins this name to its folder of scripts; an absolute path stays as it is.
    ray_constants.SETUP_WORKER_FILENAME = os.fspath(Path(worker_start.__file__).resolve())


def leave_out_client_server(scripts: ModuleType) -> None:
    """Has Ray's command line, in this process, find that its client server cannot run."""
    name = "get_ray_client_dependency_error"
    assert hasattr(scripts, name), "Ray asks another function whether it can start its client server"
    setattr(scripts, name, lambda: "it is left out")


def leave_out_api_server() -> None:
    """Has Ray, in this process, start no API server."""
    from ray._private.node import Node

    name = "start_api_server"
    assert hasattr(Node, name), "Ray starts its API server in another way"
    setattr(Node, name, lambda node, **options: None)


if __name__ == "__main__":
    main(sys.argv[1:])
