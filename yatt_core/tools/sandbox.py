"""One call of a tool, in a process of its own under a guard: a second process that holds it to its bounds.

Consumes a tool and a call's arguments; produces one JSON line that says what came of the call. The guard adopts whatever the
call started and left behind, in a group or session of its own too, and ends it all before it says anything. It ends early
when its leash is cut: a pipe whose other end its parent alone holds, so that nothing outlives the parent, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from yatt_core.installed import failure_text
from yatt_core.prompts.tool_calls import DIED, MEMORY, RAISED, TIMEOUT

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)
LONGEST_REASON = 300
"""Characters of a message that a failed call gives."""
SIGNALS = {number.value: number.name for number in signal.Signals}
"""Those with a name; real-time signals have a number alone."""

Outcome = dict[str, str]
"""`value`: the result's text; or `kind` and `reason`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A tool as it is run. characters: most of a result's text."""

    function: Callable[..., Any]
    options: Mapping[str, Any]
    seconds: float
    memory_bytes: int
    characters: int


def sandbox_call(number: int, tool: Bounds, arguments: Mapping[str, Any], answer: int, leash: int) -> None:
    """The guard, in a forked process: has the call made, ends all that is left of it, and writes what came of it to `answer`.

    leash: descriptor that is read from, and at its end once the parent is gone. Nothing is written then.
    """
    deadline = time.monotonic() + tool.seconds
    # A group of its own: what ends a whole group, as an interrupt at a terminal does, must not end the guard alone.
    os.setpgid(0, 0)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for descriptor in (reading, answer, leash):
                os.close(descriptor)
            _make_call(tool, arguments, writing)
        finally:
            os._exit(1)
    os.close(writing)
    said = _listen(reading, leash, deadline)
    status = _end(pid)
    if said is None:
        outcome: Outcome = {"kind": TIMEOUT, "reason": f"took longer than {tool.seconds:g} s"}
    elif b"\n" in said:
        outcome = json.loads(said.partition(b"\n")[0])
    else:
        outcome = {"kind": DIED, "reason": death(status)}
    write_line(answer, {"number": number, **outcome})


def death(status: int) -> str:
    """What a process's wait status says of its end."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process was ended by {SIGNALS.get(number, f'signal {number}')}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


def write_line(descriptor: int, message: Mapping[str, Any]) -> None:
    """Writes a message as one line of JSON."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _listen(pipe: int, leash: int, deadline: float) -> bytes | None:
    """What the call said: a line, or less where its process ended; none once its time is over or the leash is cut."""
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        selector.register(leash, selectors.EVENT_READ)
        while b"\n" not in said:
            ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
            if pipe not in ready:
                return None
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            said += data
    return bytes(said)


def _end(pid: int) -> int:
    """Ends the call's process and all that it left behind; returns its status: its own, where it was ending already."""
    # Until it is waited for, its number is nobody else's.
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    # What it started becomes this process's child when its parent ends. What runs as another user cannot be ended.
    with suppress(ChildProcessError, psutil.AccessDenied):
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                for orphan in psutil.Process().children():
                    orphan.kill()
                os.waitpid(-1, 0)
    return status


def _make_call(tool: Bounds, arguments: Mapping[str, Any], answer: int) -> None:
    """The call's process: bounds itself, calls, and says what came of it. It does not outlive its guard."""
    own = os.getpid()
    os.setpgid(0, 0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    bound = _address_space() + tool.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound if limits[0] < 0 else min(bound, limits[0]), limits[1]))
    outcome = call_tool(tool, arguments)
    if os.getpid() != own:  # a function that forks returns in both processes; one call has one answer
        return
    resource.setrlimit(resource.RLIMIT_AS, limits)
    write_line(answer, outcome)


def call_tool(tool: Bounds, arguments: Mapping[str, Any]) -> Outcome:
    """Calls a tool and takes whatever it raises."""
    try:
        if taken := sorted(arguments.keys() & tool.options.keys()):
            raise TypeError(f"unexpected argument {taken[0]!r}")
        value = tool.function(**arguments, **tool.options)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return {"value": text[: tool.characters].encode("utf-8", "replace").decode()}
    except MemoryError:
        return {"kind": MEMORY, "reason": f"needed more than {tool.memory_bytes >> 20} MiB"}
    except BaseException as error:  # noqa: BLE001 - the process ends behind this, whatever a tool's function raised
        return {"kind": RAISED, "reason": f"raised {failure_text(error)[:LONGEST_REASON]}"}


def _address_space() -> int:
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
