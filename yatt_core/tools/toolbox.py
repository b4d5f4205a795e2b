"""A controller's tools: answers calls in a process apart (`yatt_core.tools.worker`), whatever the tools do.

Consumes calls; produces answers, as they come. A tool that hangs, raises, takes too much memory or dies is an answer that says
so. Only the process itself, lost or without a word, is a failure of infrastructure.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.prompts.tool_calls import UNKNOWN, ToolAnswer, ToolCall
from yatt_core.spec.sections.tools import ToolsSpec

START_SECONDS = 120.0
"""For importing the tools' modules."""
END_SECONDS = 10.0
"""For ending by itself."""
SLACK_SECONDS = 60.0
"""Beyond the calls' own time limits, on a machine that is busy."""
CHARACTERS_PER_TOKEN = 32
"""A result's text longer than this for each of its tokens is cut before it is tokenized."""


class Toolbox:
    """The tools of a spec, none for a run without. Its process starts with the first call, and ends with this one's."""

    def __init__(self, spec: ToolsSpec | None) -> None:
        self._spec = spec
        self._tools = {tool.name: tool for tool in spec.functions} if spec else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()

    def answer(self, calls: Mapping[int, ToolCall | ToolAnswer]) -> Iterator[tuple[int, ToolAnswer]]:
        """Answers to calls by their number, in the order in which they come; results never depend on it.

        A call that could not be read is its own answer. Raises `InfrastructureError` when the process is lost.
        """
        readable: dict[int, ToolCall] = {}
        for number, call in calls.items():
            if isinstance(call, ToolAnswer):
                yield number, call
            elif call.name not in self._tools:
                known = ", ".join(sorted(self._tools))
                yield number, ToolAnswer.failed(UNKNOWN, f"there is no tool {call.name[:100]!r}; there are: {known}")
            else:
                readable[number] = call
        if readable:
            yield from self._ask(readable)

    def close(self) -> None:
        """Ends the process with all calls under way; the next call starts another one."""
        process, self._process = self._process, None
        self._unread.clear()
        if process is None:
            return
        # Without input it ends its calls and itself.
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

    def _ask(self, calls: Mapping[int, ToolCall]) -> Iterator[tuple[int, ToolAnswer]]:
        if self._spec is None:
            raise InfrastructureError("a call of a tool in a run without tools")
        process = self._started(self._spec)
        finished = False
        try:
            # The worker reads the whole line before it answers, so that neither waits for the other to read.
            self._send(
                process,
                [
                    {"number": number, "tool": call.name, "arguments": dict(call.arguments)}
                    for number, call in calls.items()
                ],
            )
            limit = SLACK_SECONDS + max(self._tools[call.name].timeout_seconds for call in calls.values())
            for _ in calls:
                answer = self._receive(process, limit)
                number = int(answer["number"])
                yield number, _answer_of(calls[number].name, answer)
            finished = True
        finally:
            if not finished:  # what is still under way must not be taken for an answer to the next calls
                self.close()

    def _started(self, spec: ToolsSpec) -> subprocess.Popen[bytes]:
        if self._process is None:
            # What can be imported here can be imported there.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(
                # Unbuffered: a call's process ends without a flush, and what it printed is wanted.
                [sys.executable, "-u", "-m", "yatt_core.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            ready = False
            try:
                self._send(self._process, _setup(spec))
                told = self._receive(self._process, START_SECONDS)
                ready = "ready" in told
            finally:
                if not ready:
                    self.close()
            if "refused" in told:
                raise ConfigurationError(told["refused"])
        if self._process is None:
            raise InfrastructureError("the process of tools did not start")
        return self._process

    def _send(self, process: subprocess.Popen[bytes], message: Any) -> None:
        if process.stdin is None:
            raise InfrastructureError("the process of tools has no input")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise InfrastructureError("the process of tools is gone") from None

    def _receive(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """The next line; at most so many seconds without a word."""
        if process.stdout is None:
            raise InfrastructureError("the process of tools has no output")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise InfrastructureError(f"the process of tools said nothing for {seconds:g} s")
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise InfrastructureError(f"the process of tools is gone, exit code {process.wait()}")
                self._unread += data
        line, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        message: dict[str, Any] = json.loads(line)
        return message


def _answer_of(tool: str, answer: Mapping[str, Any]) -> ToolAnswer:
    if "value" in answer:
        return ToolAnswer(answer["value"])
    return ToolAnswer.failed(answer["kind"], answer["reason"], tool)


def _setup(spec: ToolsSpec) -> dict[str, Any]:
    """What the process is told first."""
    tools = [
        {
            "name": tool.name,
            "function": tool.function,
            "options": tool.options,
            "seconds": tool.timeout_seconds,
            "memory_bytes": tool.memory_mb << 20,
        }
        for tool in spec.functions
    ]
    characters = CHARACTERS_PER_TOKEN * spec.max_result_tokens
    return {"tools": tools, "parallel": spec.parallel_calls, "characters": characters}
