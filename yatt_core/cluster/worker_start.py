"""Runs in place of Ray's own script that starts a worker: asks the fork server for one, and ends.

`python worker_start.py --serialized-runtime-env-context=... --language=PYTHON WORKER.py ...`: Ray's command line. Without a
fork server, for a worker that is not plain Python, or one with a runtime environment, it hands over to Ray's script. It is a
script and imports nothing of YATT or Ray, since it is run for every worker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SOCKET_VARIABLE, RAY_SCRIPT_VARIABLE = "YATT_FORK_SERVER", "YATT_RAY_WORKER_SCRIPT"
CONTEXT = "--serialized-runtime-env-context"
OURS = (CONTEXT, "--language")
LONGEST_WAIT = 60.0
"""Seconds until the server has done its imports; Ray itself waits as long for a worker."""


def is_plain(arguments: list[str]) -> bool:
    """Returns True for a Python worker without a runtime environment of its own."""
    options = dict(each.partition("=")[::2] for each in arguments)
    return options.get("--language") == "PYTHON" and not any(json.loads(options.get(CONTEXT) or "{}").values())


def of_worker(arguments: list[str]) -> list[str]:
    """Returns the worker's script and its arguments, without those that are for Ray's own script."""
    script = next(at for at, each in enumerate(arguments) if not each.startswith("-"))
    return [each for each in arguments[script:] if each.partition("=")[0] not in OURS]


def ask(path: str, arguments: list[str]) -> bool:
    """Asks the server for a worker; returns False if there is no server."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.path.realpath(os.curdir),
        "group": os.getpgrp(),
        "niceness": os.nice(0),
        "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(LONGEST_WAIT)
            connection.connect(path)
            socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
            return bool(connection.recv(64))
    except OSError:
        return False


if __name__ == "__main__":
    server = os.environ.get(SOCKET_VARIABLE)
    if server and is_plain(sys.argv[1:]) and ask(server, of_worker(sys.argv[1:])):
        sys.exit(0)
    os.execv(sys.executable, [sys.executable, os.environ[RAY_SCRIPT_VARIABLE], *sys.argv[1:]])
