"""Has a new run made in a process of its own: who serves HTTP imports, calls and reads nothing that its spec names.

Consumes what is asked for; produces the run with warnings, or raises what is wrong with its spec. The process
(`ops.preflight.asked`) is of the same user as a run's driver, has a time limit and a limit of memory, and takes everything
that it has started along when it ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flows.prefect_io.prefect_server import SERVER_PASSWORD_VARIABLE
from flows.run.home import Home
from yatt_core.errors import ConfigurationError, FailureClass, InfrastructureError

CHECK_SECONDS = 600.0
"""How long the check of a spec may take."""
MEMORY_FRACTION = 0.5
"""Part of this machine's memory that the check may use."""
LONGEST_ANSWER = 8_000_000
ENDING_SECONDS = 10.0
"""How long the process may take to end once it has answered."""
CHECKED = "checked"
"""What the process says before it makes the run."""
ORIGIN = "spec"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What somebody asks for: a spec in full, or that of a run or of a file in the home's `specs`, and changes to it.

    text: YAML; None for a spec that exists.
    run: a run whose newest spec is meant; None otherwise.
    file: the name of a file in `HOME/specs`; None otherwise.
    overrides: changes, as `--set` takes them.
    refusal: why nothing may be named that the existing spec does not name; None: anything may be named.
    by: who asks, for the audit chain.
    act: whether a new run is made, a fork of the run, or a revision of its spec.
    at, branch: where a fork begins; branch None: on the current one.
    discard: whether a revision may discard experience of the open iteration.
    """

    text: str | None
    run: str | None
    file: str | None
    overrides: tuple[str, ...]
    refusal: str | None
    by: str
    act: Literal["create", "fork", "revise"] = "create"
    at: int = 0
    branch: int | None = None
    discard: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A run whose spec passed its checks, new or changed.

    warnings: what works but may not be intended.
    done: what was done with an existing run; empty for one that is not made from another.
    """

    run: str
    warnings: list[str]
    done: str = ""


def made_apart(home: Home, asked: RunRequest, seconds: float = CHECK_SECONDS) -> Made:
    """Returns the new run.

    Raises `ConfigurationError` with all mistakes, one per line, also for a check that takes too long; `InfrastructureError`.
    """
    # Unlike a driver, it belongs to who asks, and ends with it.
    environment = {name: value for name, value in os.environ.items() if name != SERVER_PASSWORD_VARIABLE}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.asked", str(home.folder)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InfrastructureError(f"{ORIGIN}: no process can be started to check it: {error.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()
    timer = threading.Timer(seconds, _end_late, (process, late))
    timer.start()
    try:
        with suppress(BrokenPipeError):  # it has ended, and says why
            process.stdin.write(json.dumps(asdict(asked)).encode())
            process.stdin.close()
        first = process.stdout.readline(LONGEST_ANSWER)
        if first.strip() == CHECKED.encode():
            timer.cancel()  # a run that is being made is made whole
            first = process.stdout.readline(LONGEST_ANSWER)
        _await_end(process)
    finally:
        timer.cancel()
        timer.join()
        _end_all(process)
        process.stdout.close()
        code = process.wait()
    if not first and late.is_set():
        raise ConfigurationError(f"{ORIGIN}: its check took longer than {seconds:g} s and was ended")
    return _made(_document(first, code))


def limit_memory() -> None:
    """Limits the memory of this process, and its core dumps, which would hold what it has read."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = int(MEMORY_FRACTION * total)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a while until the process has ended, but leaves its number taken, as that of its session's processes."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.02)


def _end_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    _end_all(process)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, and what it has left in its session; its own end has taken along all that it had started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _document(answer: bytes, code: int) -> dict[str, Any]:
    """Returns what the process has answered. Raises `InfrastructureError` if it ended without an answer."""
    try:
        document: dict[str, Any] = json.loads(answer)
    except ValueError:
        said = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        raise InfrastructureError(f"{ORIGIN}: the process that checks it ended without an answer: {said}") from None
    return document


def _made(document: dict[str, Any]) -> Made:
    """Returns the run in an answer; raises the error in it."""
    if "error" in document:
        kind = ConfigurationError if document["failure_class"] != FailureClass.INFRASTRUCTURE else InfrastructureError
        raise kind(str(document["error"]))
    warnings = [str(line) for line in document["warnings"]]
    return Made(str(document["run"]), warnings, str(document.get("done", "")))
