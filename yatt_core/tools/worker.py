"""The process in which tools run: `python -m yatt_core.tools.worker`, one for each controller that needs it.

Consumes on standard input one JSON line that describes the tools, then one line for each set of calls. Produces
on standard output one line when it is ready and one for each answered call. It loads the functions once and
forks for each call (`yatt_core.tools.sandbox`): if a call hangs, even in C, or takes too much memory, only this call
is ended, and no call sees what another left behind. Output printed by tools goes to standard error. The process
and its calls end when its input ends. All of this limits faults; it is not a security sandbox.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.named_code import SentFile
from yatt_core.orphans import death
from yatt_core.prompts.tool_calls import DIED
from yatt_core.tools.registry import find_tool
from yatt_core.tools.sandbox import Bounds, sandbox_call, write_line


@dataclass(slots=True)
class _Running:
    """A call in progress.

    pid: process id of its guard.
    pipe: descriptor from which the guard's report is read.
    """

    number: int
    pid: int
    pipe: int
    said: bytearray


class Worker:
    """Answers calls, several in parallel.

    requests, answers: descriptors for incoming and outgoing lines.
    """

    def __init__(self, tools: Mapping[str, Bounds], parallel: int, requests: int, answers: int) -> None:
        self._tools = tools
        self._parallel = parallel
        self._requests = requests
        self._answers = answers
        self._waiting: deque[tuple[int, str, dict[str, Any]]] = deque()
        self._running: dict[int, _Running] = {}
        self._unread = bytearray()
        self._selector = selectors.DefaultSelector()
        self._leash, self._leash_holder = os.pipe()

    def run(self) -> None:
        """Serves until the end of the requests."""
        self._selector.register(self._requests, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd != self._requests:
                    self._hear(self._running[key.fd])
                elif not self._read():
                    self._end_all()
                    return
            while self._waiting and len(self._running) < self._parallel:
                self._start(*self._waiting.popleft())

    def _read(self) -> bool:
        """Reads what has arrived; returns False at the end of the input."""
        data = os.read(self._requests, 1 << 16)
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._waiting += [(call["number"], call["tool"], call["arguments"]) for call in json.loads(line)]
        return bool(data)

    def _start(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for descriptor in (reading, self._requests, self._answers, self._leash_holder):
                    os.close(descriptor)
                sandbox_call(
                    number=number, tool=self._tools[name], arguments=arguments, answer=writing, leash=self._leash
                )
            finally:
                os._exit(1)
        os.close(writing)
        self._running[reading] = _Running(number, pid, reading, bytearray())
        self._selector.register(reading, selectors.EVENT_READ)

    def _hear(self, call: _Running) -> None:
        """Reads a guard's report; the call is complete after a whole line or the guard's end."""
        data = os.read(call.pipe, 1 << 16)
        call.said += data
        if data and not call.said.endswith(b"\n"):
            return
        del self._running[call.pipe]
        self._selector.unregister(call.pipe)
        os.close(call.pipe)
        _, status = os.waitpid(call.pid, 0)
        answer = json.loads(call.said) if data else {"number": call.number, "kind": DIED, "reason": death(status)}
        write_line(self._answers, answer)

    def _end_all(self) -> None:
        """Ends all calls in progress."""
        for pipe in self._running:  # a guard that is about to answer must not block on a missing reader
            os.close(pipe)
        os.close(self._leash_holder)
        for call in self._running.values():
            os.waitpid(call.pid, 0)


def main() -> int:
    """Loads the tools, reports that it is ready or which tool is at fault, and serves."""
    # Only this process writes to the answers' descriptor: output printed by tools must not mix with them.
    answers = os.dup(1)
    os.dup2(2, 1)
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    setup = json.loads(_first_line(requests))
    try:
        tools = {
            tool["name"]: Bounds(
                function=find_tool(
                    tool["name"], tool["function"], tool["options"], tool["file"] and SentFile(**tool["file"])
                ),
                options=tool["options"],
                seconds=tool["seconds"],
                memory_bytes=tool["memory_bytes"],
                characters=setup["characters"],
            )
            for tool in setup["tools"]
        }
    except ConfigurationError as error:
        write_line(answers, {"refused": str(error)})
        return 1
    write_line(answers, {"ready": True})
    Worker(tools, setup["parallel"], requests, answers).run()
    return 0


def _first_line(descriptor: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
