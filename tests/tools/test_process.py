"""The process of tools as the controller sees it, with a stand-in for the process: what is heard of it, and its end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from yatt_core.errors import InfrastructureError
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools import process as module
from yatt_core.tools.process import GAP_SECONDS, SLACK_SECONDS, ToolProcess

SPEC = ToolsSpec.model_validate(
    {"functions": [{"name": "calculator", "function": "calculator", "timeout_seconds": 20.0}]}
)
CALL = ToolCall("calculator", {"expression": "1"})


def line(**said: object) -> bytes:
    return json.dumps(said).encode() + b"\n"


class StandIn:
    """A process that says what a test writes to `answers`, and reads nothing of `requests`.

    code: its exit code; None while it runs.
    """

    def __init__(self, said: bytes = b"") -> None:
        requests, stdin = os.pipe()
        stdout, answers = os.pipe()
        self.requests: BinaryIO = os.fdopen(requests, "rb", 0)
        self.stdin: BinaryIO = os.fdopen(stdin, "wb", 0)
        self.stdout: BinaryIO = os.fdopen(stdout, "rb", 0)
        self.answers: BinaryIO = os.fdopen(answers, "wb", 0)
        self.answers.write(said)
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self, seconds: float | None = None) -> int:
        return self.code or 0

    def close(self) -> None:
        for end in (self.requests, self.stdin, self.stdout, self.answers):
            end.close()


Starts = Callable[[StandIn], None]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    """Has stand-ins started, in the order of the calls."""
    waiting: list[StandIn] = []
    made: list[StandIn] = []

    def start(process: StandIn) -> None:
        process.answers.write(line(ready=True))
        waiting.append(process)
        made.append(process)

    monkeypatch.setattr("yatt_core.tools.process.subprocess.Popen", lambda *command, **options: waiting.pop(0))
    yield start
    for process in made:
        process.close()


def test_a_hung_process_is_found_in_time_after_an_absence_of_the_caller(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    stand_in = StandIn()
    starts(stand_in)
    tools = ToolProcess(SPEC, None)
    tools.send({0: CALL})
    stand_in.answers.write(b'{"number"')
    now += 1000.0
    tools.send({1: CALL})
    limit = SLACK_SECONDS + 20.0
    looks = 0
    with pytest.raises(InfrastructureError, match="did not respond"):
        while looks < 2 * limit:
            assert tools.receive(0.0) == []
            now += GAP_SECONDS
            looks += 1
    assert looks <= limit + 2


def test_a_process_that_ended_after_its_last_answer_is_replaced(starts: Starts) -> None:
    first = StandIn()
    starts(first)
    starts(StandIn())
    tools = ToolProcess(SPEC, None)
    tools.send({})
    first.answers.write(line(number=0, value="1"))
    first.answers.close()
    tools.send({0: CALL})
    assert tools.receive(0.0) == [{"number": 0, "value": "1"}]
    tools.send({1: CALL})
    assert tools.receive(0.0) == [], "the call is open"


def test_the_end_of_a_process_is_noticed_although_its_pipe_is_held_open(starts: Starts) -> None:
    stand_in = StandIn()
    starts(stand_in)
    tools = ToolProcess(SPEC, None)
    tools.send({0: CALL, 1: CALL})
    stand_in.answers.write(line(number=0, value="1"))
    stand_in.requests.close()
    stand_in.code = -9
    tools.send({2: CALL})
    assert tools.receive(20.0) == [{"number": 0, "value": "1"}]
    with pytest.raises(InfrastructureError, match="tool process has ended with exit code -9"):
        tools.receive(20.0)
