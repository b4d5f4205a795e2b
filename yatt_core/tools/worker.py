"""The process in which tools run: `python -m yatt_core.tools.worker`, one for each controller that needs it.

Consumes on standard input one JSON line that says which tools there are, then one line for each set of calls; produces on
standard output a line when it is ready and one for each call as it is answered. It loads the functions once and forks for
each call: a call that hangs, in C too, or takes too much memory ends alone, and none sees what another left behind. What
tools print goes to standard error. It ends, and its calls with it, when its input does. These are bounds, no sandbox.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text
from yatt_core.tools.calls import DIED, MEMORY, RAISED, TIMEOUT
from yatt_core.tools.registry import find_tool

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
LONGEST_REASON = 300
"""Characters of a message that a failed call gives."""

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


@dataclass(slots=True)
class _Running:
    """A call under way in a forked process, which leads a process group of its own."""

    number: int
    tool: Bounds
    pid: int
    pipe: int
    deadline: float
    said: bytearray


class Worker:
    """Answers calls, a few at once. requests, answers: descriptors of the lines that come and go."""

    def __init__(self, tools: Mapping[str, Bounds], parallel: int, requests: int, answers: int) -> None:
        self._tools, self._parallel, self._requests, self._answers = tools, parallel, requests, answers
        self._waiting: deque[tuple[int, str, dict[str, Any]]] = deque()
        self._running: dict[int, _Running] = {}
        self._unread = bytearray()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serves until the requests end."""
        self._selector.register(self._requests, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fd != self._requests:
                    self._hear(self._running[key.fd])
                elif not self._read():
                    for call in list(self._running.values()):
                        self._end(call)
                    return
            for call in [call for call in self._running.values() if time.monotonic() >= call.deadline]:
                self._end(call)
                self._answer(call.number, {"kind": TIMEOUT, "reason": f"took longer than {call.tool.seconds:g} s"})
            while self._waiting and len(self._running) < self._parallel:
                self._start(*self._waiting.popleft())

    def _patience(self) -> float | None:
        deadlines = [call.deadline for call in self._running.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _read(self) -> bool:
        """Takes what came in; False at the end."""
        data = os.read(self._requests, 1 << 16)
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._waiting += [(call["number"], call["tool"], call["arguments"]) for call in json.loads(line)]
        return bool(data)

    def _start(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        tool = self._tools[name]
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _child(tool, arguments, writing, (reading, self._requests, self._answers))
            finally:
                os._exit(1)
        os.close(writing)
        with suppress(OSError):
            # Both sides set it, so that it holds whoever comes first.
            os.setpgid(pid, pid)
        self._running[reading] = _Running(number, tool, pid, reading, time.monotonic() + tool.seconds, bytearray())
        self._selector.register(reading, selectors.EVENT_READ)

    def _hear(self, call: _Running) -> None:
        """Takes what a call's process said; it is done with a whole line, or with its end."""
        data = os.read(call.pipe, 1 << 16)
        call.said += data
        if data and not call.said.endswith(b"\n"):
            return
        status = self._end(call)
        self._answer(call.number, json.loads(call.said) if data else {"kind": DIED, "reason": _death(status)})

    def _end(self, call: _Running) -> int:
        """Ends a call's process and all that it started; returns its status: its own, where it was ending already."""
        del self._running[call.pipe]
        self._selector.unregister(call.pipe)
        os.close(call.pipe)
        # Until it is waited for, its number is nobody else's.
        with suppress(ProcessLookupError):
            os.killpg(call.pid, signal.SIGKILL)
        return os.waitpid(call.pid, 0)[1]

    def _answer(self, number: int, outcome: Outcome) -> None:
        _write(self._answers, {"number": number, **outcome})


def _child(tool: Bounds, arguments: dict[str, Any], answer: int, inherited: Sequence[int]) -> None:
    """The forked process: bounds itself, calls, and says what came of it. It does not outlive its parent."""
    os.setpgid(0, 0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in inherited:
        os.close(descriptor)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    bound = _address_space() + tool.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound if limits[0] < 0 else min(bound, limits[0]), limits[1]))
    outcome = call_tool(tool, arguments)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    _write(answer, outcome)


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


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


def _write(descriptor: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> int:
    """Loads the tools, says so or what is wrong with one, and serves."""
    # The answers' descriptor is nobody's but ours: what tools print must not be among them.
    answers = os.dup(1)
    os.dup2(2, 1)
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    setup = json.loads(_first_line(requests))
    try:
        tools = {
            tool["name"]: Bounds(
                find_tool(tool["name"], tool["function"], tool["options"]),
                tool["options"],
                tool["seconds"],
                tool["memory_bytes"],
                setup["characters"],
            )
            for tool in setup["tools"]
        }
    except ConfigurationError as error:
        _write(answers, {"refused": str(error)})
        return 1
    _write(answers, {"ready": True})
    Worker(tools, setup["parallel"], requests, answers).run()
    return 0


def _first_line(descriptor: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
