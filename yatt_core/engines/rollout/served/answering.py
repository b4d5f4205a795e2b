"""The engine's end of the connection with its actor: greets, opens what the first call names, and answers calls.

Runs in the engine's process, with the engine's libraries. Consumes calls from the connection, which is an open descriptor,
and sends back what the engine returns or which of YATT's errors it raises. Any other exception ends the process: nobody
knows the state of an engine that failed in an unexpected way. The process ends when its parent ends or closes the connection.
"""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any

from yatt_core.engines.rollout.served.protocol import VERSION, Answer, Call, Greeting, Opening, receive, send
from yatt_core.errors import ConfigurationError, YattError
from yatt_core.orphans import end_with_parent

Openers = Mapping[str, Callable[[Opening], Any]]
"""What builds the object that answers, by the first call."""


def greeting(packages: Iterable[str]) -> Greeting:
    """Returns this process's greeting. packages: those that matter; the ones that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return Greeting(VERSION, versions)


def answer_calls(connection: Connection, openers: Openers, packages: Iterable[str]) -> None:
    """Answers calls until the connection is closed.

    packages: whose versions the greeting tells.
    """
    send(connection, greeting(packages))
    target: Any = None
    with suppress(EOFError, ConnectionError):
        _check_other(connection)
        while True:
            call: Call = receive(connection)
            try:
                if target is None:
                    target = openers[call.method](*call.arguments)
                    answer = Answer()
                else:
                    answer = Answer(getattr(target, call.method)(*call.arguments))
            except YattError as error:
                answer = Answer(error=error)
            send(connection, answer)


def _check_other(connection: Connection) -> None:
    """Receives the actor's greeting. An actor of another protocol is told so, in place of the first call's answer."""
    other: Greeting = receive(connection)
    if other.protocol != VERSION:
        said = (
            f"this engine speaks protocol {VERSION}, and YATT's actor protocol {other.protocol}; install the same YATT"
        )
        send(connection, Answer(error=ConfigurationError(said)))
        raise EOFError


def serve(descriptor: int, parent: int, openers: Openers, packages: Iterable[str]) -> None:
    """Answers the parent's calls, then ends the process.

    descriptor: the open connection.
    parent: id of the process that started this one.
    """
    end_with_parent()
    if os.getppid() == parent:  # otherwise it ended before it could be watched
        code = 1
        try:
            answer_calls(Connection(descriptor), openers, packages)
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends after this, whatever happened
            traceback.print_exc()
        # An orderly end takes seconds, and nothing depends on it: the workers end with this process.
        os._exit(code)
