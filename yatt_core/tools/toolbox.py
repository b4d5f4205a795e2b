"""A controller's tools: answers calls in a separate process (`yatt_core.tools.worker`), whatever the tools do.

Consumes calls. Produces answers as they arrive. A tool that hangs, raises, takes too much memory or dies
results in an answer that reports this. Only if the tool process itself is lost or does not respond is this an
infrastructure failure.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.prompts.tool_calls import UNKNOWN, ToolAnswer, ToolCall
from yatt_core.redoing import Service, Unanswered
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools.registry import read_tool

START_SECONDS = 120.0
"""Time limit for importing the tools' modules."""
END_SECONDS = 10.0
"""Time limit for the process to exit on its own."""
SLACK_SECONDS = 60.0
"""Added to the calls' own time limits, for a busy machine."""
WITNESS = -1
"""Number of a call that was answered before, and is made again to see whether a service answers at all: no call of a tool that
is not deterministic, which may do something each time."""
KEPT_SECONDS = 600.0
"""How long the answer to such a call serves the call that asked first, or an equal one."""
CHARACTERS_PER_TOKEN = 32
"""Before it is tokenized, a result's text is cut to this many characters per token of `max_result_tokens`."""


class Toolbox:
    """The tools of a spec; empty for a run without tools.

    run_folder: folder of the run, which has its own copies of files with tools; None before there is a run.

    The tool process starts with the first call and ends with this process.
    """

    def __init__(self, spec: ToolsSpec | None, run_folder: Path | None = None) -> None:
        self._spec = spec
        self._run_folder = run_folder
        self._tools = {tool.name: tool for tool in spec.functions} if spec else {}
        self._services: dict[str, Service[ToolAnswer]] = {}
        self._answered: dict[str, ToolCall] = {}
        self._unanswered: dict[str, ToolCall] = {}
        self._found: dict[str, tuple[float, ToolAnswer]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()

    def answer(self, calls: Mapping[int, ToolCall | ToolAnswer]) -> Iterator[tuple[int, ToolAnswer]]:
        """Yields answers to calls by number, in the order in which they arrive; results never depend on that order.

        An invalid call is its own answer. Raises `InfrastructureError` if the process is lost, and `AwayError` if what a tool
        asks answers no call.
        """
        readable: dict[int, ToolCall] = {}
        for number, call in calls.items():
            if isinstance(call, ToolAnswer):
                yield number, call
            elif call.name not in self._tools:
                known = ", ".join(sorted(self._tools))
                yield number, ToolAnswer.failed(UNKNOWN, f"there is no tool {call.name[:100]!r}; there are: {known}")
            elif (found := self._kept(call)) is not None:
                yield number, found
            else:
                readable[number] = call
        if readable:
            yield from self._ask_patiently(readable)

    def _ask_patiently(self, calls: Mapping[int, ToolCall]) -> Iterator[tuple[int, ToolAnswer]]:
        """Yields the answers as they arrive; calls that a service did not answer are made again before they have failed."""
        sent = time.monotonic()
        unanswered: dict[str, dict[int, ToolCall]] = {}
        for number, answer in self._ask(calls):
            name = calls[number].name
            if answer.is_unavailable:
                unanswered.setdefault(name, {})[number] = calls[number]
                self._service(name).note_failure()
            else:
                self._service(name).note_answer(sent)
                if self._tools[name].deterministic:
                    self._answered[name] = calls[number]
                yield number, answer
        for name, own in sorted(unanswered.items()):
            yield from self._ask_again(name, own)

    def _service(self, name: str) -> Service[ToolAnswer]:
        return self._services.setdefault(name, Service(f"what tool {name!r} asks"))

    def _ask_again(self, name: str, calls: Mapping[int, ToolCall]) -> Iterator[tuple[int, ToolAnswer]]:
        """Yields the answers of one tool to calls that a service did not answer the first time."""
        known = self._answered.get(name)

        def asked(numbers: Collection[int]) -> dict[int, ToolAnswer | Unanswered]:
            wanted = {number: calls[number] for number in numbers if number != WITNESS}
            if known is not None and WITNESS in numbers:
                wanted[WITNESS] = known
            found = dict(self._ask(wanted))
            return {
                number: Unanswered(answer.error) if answer.is_unavailable else answer
                for number, answer in found.items()
            }

        self._unanswered[name] = next(iter(calls.values()))
        for number, answer in self._service(name).ask(calls, asked, witness=None if known is None else WITNESS):
            yield number, ToolAnswer("", answer.reason) if isinstance(answer, Unanswered) else answer
        del self._unanswered[name]

    def answers(self, dependency: str) -> bool | None:
        """Returns whether what a tool asks answers again; None if something else is away.

        The call that is made for that is one that was answered before, if it may be repeated. Otherwise it is one that got
        no answer; its answer is kept for the next call that equals it, so that nothing is done twice.
        """
        name = next((name for name, service in self._services.items() if service.name == dependency), None)
        if name is None or name not in self._unanswered:
            return None
        known = self._answered.get(name)
        call = known or self._unanswered[name]
        if _identity(call) in self._found:
            return True
        ((_, answer),) = self._ask({WITNESS: call})
        if not answer.is_unavailable and known is None:
            self._found[_identity(call)] = time.monotonic(), answer
        return not answer.is_unavailable

    def _kept(self, call: ToolCall) -> ToolAnswer | None:
        """Returns the answer to a call that was made to see whether a service answers, once, and soon after."""
        at, answer = self._found.pop(_identity(call), (0.0, None))
        return answer if time.monotonic() - at < KEPT_SECONDS else None

    def close(self) -> None:
        """Ends the process with all its running calls; the next call starts a new one."""
        process = self._process
        self._process = None
        self._unread.clear()
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

    def _ask(self, calls: Mapping[int, ToolCall]) -> Iterator[tuple[int, ToolAnswer]]:
        if self._spec is None:
            raise InfrastructureError("a tool was called in a run without tools")
        process = self._started(self._spec)
        finished = False
        try:
            # The worker reads the whole line before it answers, so there is no deadlock.
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
            if not finished:  # an answer still in progress must not be mistaken for an answer to the next calls
                self.close()

    def _started(self, spec: ToolsSpec) -> subprocess.Popen[bytes]:
        if self._process is None:
            setup = _setup(spec, self._run_folder)
            # Everything importable in this process must be importable in the tool process.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(
                # Unbuffered, because a call's process ends without a flush and would lose its output.
                [sys.executable, "-u", "-m", "yatt_core.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            ready = False
            try:
                self._send(self._process, setup)
                told = self._receive(self._process, START_SECONDS)
                ready = "ready" in told
            finally:
                if not ready:
                    self.close()
            if "refused" in told:
                raise ConfigurationError(told["refused"])
        if self._process is None:
            raise InfrastructureError("the tool process did not start")
        return self._process

    def _send(self, process: subprocess.Popen[bytes], message: Any) -> None:
        if process.stdin is None:
            raise InfrastructureError("the tool process has no standard input")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise InfrastructureError("the tool process has ended") from None

    def _receive(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """Returns the next line.

        seconds: maximum time to wait for it.
        """
        if process.stdout is None:
            raise InfrastructureError("the tool process has no standard output")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise InfrastructureError(f"the tool process did not respond for {seconds:g} s")
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise InfrastructureError(f"the tool process has ended with exit code {process.wait()}")
                self._unread += data
        line, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        message: dict[str, Any] = json.loads(line)
        return message


def _identity(call: ToolCall) -> str:
    return json.dumps([call.name, dict(call.arguments)], sort_keys=True)


def _answer_of(tool: str, answer: Mapping[str, Any]) -> ToolAnswer:
    if "value" in answer:
        return ToolAnswer(answer["value"])
    return ToolAnswer.failed(answer["kind"], answer["reason"], tool)


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
