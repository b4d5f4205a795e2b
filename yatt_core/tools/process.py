"""The process in which a controller's tools run, as the controller sees it: sends calls, receives answers, waits for neither.

Consumes calls by number; produces the answers' lines as they arrive (`yatt_core.tools.worker` writes them). Calls may be sent
while others are answered. Nothing waits for the process to read: what it has not taken yet is sent while answers are received.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools.registry import read_tool

START_SECONDS = 120.0
"""Time limit for importing the tools' modules."""
END_SECONDS = 10.0
"""Time limit for the process to exit on its own."""
SLACK_SECONDS = 60.0
"""Added to the calls' own time limits, for a busy machine."""
LIFE_SECONDS = 1.0
"""How often a wait for answers looks whether the process still runs, in seconds."""
GAP_SECONDS = 1.0
"""The longest time between two looks for answers that counts as waiting: a caller that did something else did not wait."""
CHARACTERS_PER_TOKEN = 32
"""Before it is tokenized, a result's text is cut to this many characters per token of `max_result_tokens`."""


class ToolProcess:
    """The process of a spec's tools; it starts with the first call.

    It starts again after `close`, and if it was seen to have ended when every call was answered.

    run_folder: folder of the run, which has its own copies of files with tools; None before there is a run.
    """

    def __init__(self, spec: ToolsSpec, run_folder: Path | None) -> None:
        self._spec = spec
        self._run_folder = run_folder
        self._seconds = {tool.name: tool.timeout_seconds for tool in spec.functions}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()
        self._unsent = bytearray()
        # The time limits of the calls in progress, by number.
        self._limits: dict[int, float] = {}
        # When something was heard last and when was looked for it, in seconds of the monotonic clock.
        self._heard = 0.0
        self._looked = 0.0
        self._ended: InfrastructureError | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._process is None else self._process.pid

    def send(self, calls: Mapping[int, ToolCall]) -> None:
        """Sends calls, whose numbers no call in progress has.

        Raises `ConfigurationError` for a tool that cannot be loaded, and `InfrastructureError` if the process does not start.
        That a process has ended is raised by `receive`, since the answers that it has left are read first.
        """
        process = self._started()
        if not self._limits:
            self._heard = time.monotonic()
            self._looked = self._heard
        self._limits |= {number: self._seconds[call.name] for number, call in calls.items()}
        lines = [
            {"number": number, "tool": call.name, "arguments": dict(call.arguments)} for number, call in calls.items()
        ]
        self._unsent += json.dumps(lines).encode() + b"\n"
        self._exchange(process, 0.0)

    def receive(self, seconds: float) -> list[dict[str, Any]]:
        """Returns the answers that have arrived, and waits for the first so many seconds at most.

        Raises `InfrastructureError` if the process has ended and all of its answers have been returned, or if it does not respond
        for longer than the calls may take.
        """
        process = self._process
        if process is None or not self._limits:
            return []
        self._heard += max(0.0, time.monotonic() - self._looked - GAP_SECONDS)
        self._exchange(process, 0.0 if b"\n" in self._unread else seconds)
        self._looked = time.monotonic()
        *lines, self._unread = self._unread.split(b"\n")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for answer in answers:
            self._limits.pop(int(answer["number"]), None)
        if self._ended is not None and not answers:
            raise self._ended
        limit = SLACK_SECONDS + max(self._limits.values(), default=0.0)
        if self._limits and self._looked - self._heard > limit:
            raise InfrastructureError(f"the tool process did not respond for {limit:g} s")
        return answers

    def close(self) -> None:
        """Ends the process with all its running calls."""
        process = self._process
        self._process = None
        self._unread.clear()
        self._unsent.clear()
        self._limits.clear()
        self._ended = None
        if process is None:
            return
        # At the end of its input, the process ends its calls and itself.
        with suppress(BrokenPipeError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._ended is not None and not self._limits:
            # Nobody has lost an answer by its end, which `receive` therefore does not raise.
            self.close()
        if self._process is not None:
            return self._process
        setup = _setup(self._spec, self._run_folder)
        # Everything importable in this process must be importable in the tool process.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            # Unbuffered, because a call's process ends without a flush and would lose its output.
            [sys.executable, "-u", "-m", "yatt_core.tools.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        self._process = process
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        ready = False
        try:
            self._unsent += json.dumps(setup).encode() + b"\n"
            told = self._first_line(process)
            ready = "ready" in told
        finally:
            if not ready:
                self.close()
        if "refused" in told:
            raise ConfigurationError(told["refused"])
        return process

    def _first_line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise InfrastructureError(f"the tool process did not respond for {START_SECONDS:g} s")
            self._exchange(process, left)
            if self._ended is not None:
                raise self._ended
        line, _, self._unread = self._unread.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def _exchange(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Sends what the process takes and reads what it has said; waits for something to read for so many seconds at most.

        Notes that the process has ended once nothing is left to read. The end of its answers alone would not show that: a process
        that a tool's module has started may hold the same pipe open.
        """
        requests = process.stdin
        answers = process.stdout
        if requests is None or answers is None:
            raise InfrastructureError("the tool process has no standard input or output")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            if self._unsent:
                selector.register(requests, selectors.EVENT_WRITE)
            while True:
                # Before the look for answers: what the process had said until it ended is there to be read.
                code = process.poll()
                left = max(0.0, deadline - time.monotonic())
                wait = min(left, LIFE_SECONDS) if code is None else 0.0
                ready = [key.fileobj for key, _ in selector.select(wait)]
                if requests in ready and self._has_sent_all(requests.fileno()):
                    selector.unregister(requests)
                if answers in ready:
                    self._read(process, answers.fileno())
                    return
                if not ready and code is not None:
                    self._end(code)
                if not ready and (code is not None or wait == left):
                    return

    def _has_sent_all(self, requests: int) -> bool:
        try:
            del self._unsent[: os.write(requests, self._unsent)]
        except BrokenPipeError:
            # It has ended, which is noted once its answers, which may still be unread, have been read.
            self._unsent.clear()
        return not self._unsent

    def _read(self, process: subprocess.Popen[bytes], answers: int) -> None:
        data = os.read(answers, 1 << 16)
        if not data:
            self._end(process.wait())
        self._unread += data
        # A part of a long answer is a sign of life as well. The caller's absence until now is over: it is not added any more.
        self._heard = time.monotonic()
        self._looked = self._heard

    def _end(self, code: int) -> None:
        self._ended = InfrastructureError(f"the tool process has ended with exit code {code}")


def _setup(spec: ToolsSpec, run_folder: Path | None) -> dict[str, Any]:
    """Returns the first message to the tool process, which describes the tools. Raises as `read_tool` does."""
    read = [(tool, *read_tool(tool, run_folder)) for tool in spec.functions]
    tools = [
        {
            "name": tool.name,
            "function": function,
            "file": None if file is None else asdict(file),
            "options": tool.options,
            "seconds": tool.timeout_seconds,
            "memory_bytes": tool.memory_mb << 20,
        }
        for tool, function, file in read
    ]
    characters = CHARACTERS_PER_TOKEN * spec.max_result_tokens
    return {"tools": tools, "parallel": spec.parallel_calls, "characters": characters}
