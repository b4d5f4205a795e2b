"""Tools that misbehave, and one that counts its calls."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from yatt_core.errors import InfrastructureError

CALLS = 0
MARK = "YATT_TEST_LEFT_BEHIND"
PATIENT = "7"
"""A digit; expressions with it take long."""


def left_behind() -> str:
    """Returns the inherited argument by which a test finds the processes that its own tools left behind."""
    return os.environ[MARK]


def counting(expression: str, file: str, more: str = "") -> str:
    """Appends a line to a file and returns a result that depends on the expression."""
    with Path(file).open("a") as stream:
        stream.write(f"{expression}\n")
    return f"{len(expression)}{more}"


def patient(expression: str, file: str) -> str:
    """Returns an expression, if it has a certain digit only once a file is there."""
    while PATIENT in expression and not Path(file).exists():
        time.sleep(0.01)
    return expression


def hang(expression: str) -> str:
    time.sleep(3600)
    return expression


def hang_in_c(expression: str) -> str:
    """Holds the interpreter lock in C code, which no Python signal handler can interrupt."""
    ctypes.PyDLL(None).pause()
    return expression


def hang_deaf(expression: str) -> str:
    """Ignores every signal that can be ignored, as does the process that it starts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", left_behind()])
    while True:
        time.sleep(1)


def hog(expression: str) -> int:
    return len(bytes(1 << 32)) + len(expression)


def broken(expression: str) -> str:
    raise ValueError(f"no such thing: {object()} in {expression}")


def die(expression: str) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return expression


def leave(expression: str) -> str:
    os._exit(7)
    return expression


def silent(expression: str) -> str:
    """Closes everything that it could report through, and continues."""
    os.closerange(0, 1000)
    time.sleep(3600)
    return expression


def forgetful(expression: str) -> int:
    """Returns how often it was called in this process."""
    global CALLS
    CALLS += len(expression)
    return CALLS


def talkative(expression: str) -> dict[str, object]:
    os.write(1, b'{"number": 0, "value": "forged"}\n')
    return {"said": [expression, 1.5, None, "ü"]}


def unspeakable(expression: str) -> object:
    return {expression}


def signalled(expression: str) -> str:
    """Dies of a real-time signal, which has no name."""
    os.kill(os.getpid(), 35)
    return expression


def twice(expression: str) -> str:
    """Returns in two processes."""
    os.fork()
    return expression


def unwritable(expression: str) -> str:
    raise ValueError(f"bad \udc80 name in {expression}")


def speechless(expression: str) -> str:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError(expression)

    raise SpeechlessError


def hang_elsewhere(expression: str) -> str:
    """Hangs in a process group that it does not lead."""
    os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(3600)
    return expression


def detach(expression: str) -> str:
    """Leaves a process behind that leads its own session and whose parent is gone."""
    command = [sys.executable, "-c", "import time; time.sleep(3600)", left_behind()]
    starter = f"import subprocess; subprocess.Popen({command}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", starter], check=True)
    return expression


def printing(expression: str) -> str:
    sys.stdout.write(expression)  # as `print` does
    return "printed"


def asking(expression: str, file: str = "") -> str:
    """Asks a service that never answers questions with a 7, and none while the file exists."""
    if "7" in expression or (file and Path(file).exists()):
        raise InfrastructureError("the search is busy")
    return f"found {expression}"
