"""Runs one call of a tool in its own process under a guard: a second process that enforces its limits.

Consumes a tool and a call's arguments. Produces one JSON line with the outcome of the call. The guard adopts
all processes that the call has started and left behind, even in their own group or session, and ends them all
before it reports. Only the guard's parent holds the other end of a pipe, the leash; when the parent ends, however it
ends, the leash is cut, and the guard stops early. Nothing therefore outlives the parent.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import InfrastructureError
from yatt_core.installed import failure_text
from yatt_core.orphans import adopt_orphans, death, end_children, end_with_parent
from yatt_core.prompts.tool_calls import DIED, MEMORY, RAISED, TIMEOUT, UNAVAILABLE

LONGEST_REASON = 300
"""Maximum length of a failed call's message in characters."""

Outcome = dict[str, str]
"""Either `value`, the result's text, or `kind` and `reason`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A tool with its limits.

    characters: maximum length of a result's text.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    seconds: float
    memory_bytes: int
    characters: int


def sandbox_call(number: int, tool: Bounds, arguments: Mapping[str, Any], answer: int, leash: int) -> None:
    """Guards a call in a forked process: starts it, ends all that it leaves behind, writes the outcome to `answer`.

    leash: descriptor that reaches its end when the parent is gone; then nothing is written.
    """
    deadline = time.monotonic() + tool.seconds
    # A group of its own: a signal to the parent's group, such as a terminal's interrupt, must not end the guard.
    os.setpgid(0, 0)
    adopt_orphans()
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


def write_line(descriptor: int, message: Mapping[str, Any]) -> None:
    """Writes a message as one line of JSON."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _listen(pipe: int, leash: int, deadline: float) -> bytes | None:
    """Returns what the call has written: a line, or less if its process ended.

    Returns None if its time is over or the leash is cut.
    """
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
    """Ends the call's process and all that it left behind; returns the process's wait status.

    If the process had already ended, this is the status with which it ended.
    """
    # Until it is waited for, its pid cannot be reused.
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    end_children()
    return status


def _make_call(tool: Bounds, arguments: Mapping[str, Any], answer: int) -> None:
    """Runs in the call's process: limits itself, calls the tool and reports the outcome.

    Ends together with its guard.
    """
    own = os.getpid()
    os.setpgid(0, 0)
    end_with_parent()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    bound = _address_space() + tool.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound if limits[0] < 0 else min(bound, limits[0]), limits[1]))
    outcome = call_tool(tool, arguments)
    if os.getpid() != own:  # a function that forks returns in both processes, but a call has only one answer
        return
    resource.setrlimit(resource.RLIMIT_AS, limits)
    write_line(answer, outcome)


def call_tool(tool: Bounds, arguments: Mapping[str, Any]) -> Outcome:
    """Calls a tool and catches everything that it raises."""
    try:
        if taken := sorted(arguments.keys() & tool.options.keys()):
            raise TypeError(f"unexpected argument {taken[0]!r}")
        value = tool.function(**arguments, **tool.options)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return {"value": text[: tool.characters].encode("utf-8", "replace").decode()}
    except InfrastructureError as error:
        return {"kind": UNAVAILABLE, "reason": str(error)[:LONGEST_REASON]}
    except MemoryError:
        return {"kind": MEMORY, "reason": f"needed more than {tool.memory_bytes >> 20} MiB"}
    except BaseException as error:  # noqa: BLE001 - the process ends after this, whatever the tool raised
        return {"kind": RAISED, "reason": f"raised {failure_text(error)[:LONGEST_REASON]}"}


def _address_space() -> int:
    """Returns the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
