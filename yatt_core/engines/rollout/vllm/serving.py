"""The main module of an engine's process: `python -m yatt_core.engines.rollout.vllm.serving CONNECTION PARENT`.

Consumes calls from the connection, which is an open descriptor, and sends back what `VllmCore` returns or which of YATT's
errors it raises. The workers of an engine's other nodes (`VllmFollower`) are opened in the same way, and take no calls. Any
other exception ends the process: nobody knows the state of an engine that failed in an unexpected way. The process ends
when its parent ends or closes the connection.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from yatt_core.engines.rollout.vllm.engine_process import OPEN
from yatt_core.errors import YattError
from yatt_core.orphans import end_with_parent

if TYPE_CHECKING:
    from yatt_core.engines.rollout.vllm.core import VllmCore
    from yatt_core.engines.rollout.vllm.follower import VllmFollower


def serve(connection: Connection) -> None:
    """Answers calls until the connection is closed; the first one, `OPEN` or `FOLLOW`, tells what to open."""
    core: VllmCore | VllmFollower | None = None
    with suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            try:
                if core is None:
                    core = _open(arguments) if method == OPEN else _follow(arguments)
                    value: Any = None
                else:
                    value = getattr(core, method)(*arguments)
            except YattError as error:
                connection.send((True, error))
            else:
                connection.send((False, value))


def _open(arguments: tuple[Any, ...]) -> VllmCore:
    from yatt_core.engines.rollout.vllm.core import VllmCore  # imports vLLM

    return VllmCore(*arguments)


def _follow(arguments: tuple[Any, ...]) -> VllmFollower:
    from yatt_core.engines.rollout.vllm.follower import VllmFollower  # imports vLLM

    return VllmFollower(*arguments)


def main(descriptor: int, parent: int) -> None:
    """Serves the parent's calls."""
    end_with_parent()
    if os.getppid() == parent:  # otherwise it ended before it could be watched
        code = 1
        try:
            serve(Connection(descriptor))
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends after this, whatever happened
            traceback.print_exc()
        # An orderly end takes seconds, and nothing depends on it: the workers end with this process.
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
