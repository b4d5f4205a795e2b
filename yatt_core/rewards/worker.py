"""The process in which reward functions run: `python -m yatt_core.rewards.worker`, one for each process that scores.

Consumes JSON lines on standard input: functions to load, and calls of loaded functions. Produces JSON lines on standard
output. There are two processes. The outer one, the guard, loads nothing; it ends the inner one and everything that
it has left behind when its leash is cut: a pipe of which only the scoring process holds the other end. The inner one
executes the functions, and keeps them loaded. Output printed by functions goes to standard error. All of this limits
faults; it is not a security sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any, BinaryIO

from yatt_core.errors import ConfigurationError
from yatt_core.orphans import adopt_orphans, death, end_children, end_with_parent
from yatt_core.prompts.prompt import Completion, Message, Prompt
from yatt_core.prompts.reading import Reading, reading_of
from yatt_core.rewards.calls import (
    Call,
    CallLimits,
    RewardOutcome,
    evaluate,
    evaluate_concurrently,
    plain_outcome,
)
from yatt_core.rewards.conventions import Candidate, RewardFunction
from yatt_core.rewards.idle_time import IdleTime
from yatt_core.rewards.registry import FunctionName, resolve


class Server:
    """Loads functions and calls them, one request after the other.

    answers: descriptor for outgoing lines.
    """

    def __init__(self, requests: BinaryIO, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._functions: dict[int, RewardFunction] = {}
        self._pid = os.getpid()
        self._idle = IdleTime()
        # Modules make semaphores, locks and clients once, and these belong to the loop in which they are used first.
        self._runner = asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self._idle))

    def run(self) -> None:
        """Serves until the end of the requests."""
        with self._runner:
            asyncio.set_event_loop(self._runner.get_loop())
            for line in self._requests:
                request = json.loads(line)
                if "load" in request:
                    self._load(request)
                else:
                    self._evaluate(request)

    def _load(self, request: dict[str, Any]) -> None:
        try:
            function = resolve(FunctionName.of_fields(request["load"]))
        except ConfigurationError as error:
            self._say({"refused": str(error)})
            return
        self._functions[request["key"]] = function
        kept = ("unit", "facts", "awaits", "blames_response", "takes_steps")
        self._say({"loaded": {name: getattr(function, name) for name in kept}})

    def _evaluate(self, request: dict[str, Any]) -> None:
        function = self._functions[request["key"]]
        limits = CallLimits(**request["limits"])
        stop = request["stop"]
        calls = _calls(request)
        if function.awaits:
            self._runner.run(self._await_all(function, calls, limits, stop))
        else:
            for index, call in enumerate(calls):
                failed = self._report(index, evaluate(function, call, limits))
                end_children()
                if failed and stop:
                    break
        self._say({"end": True})
        end_children()

    async def _await_all(self, function: RewardFunction, calls: Sequence[Call], limits: CallLimits, stop: bool) -> None:
        async with aclosing(evaluate_concurrently(function, calls, limits, self._idle)) as ended:
            async for index, outcomes in ended:
                if self._report(index, outcomes) and stop:
                    break

    def _report(self, index: int, outcomes: Sequence[RewardOutcome]) -> bool:
        """Reports a call; returns whether it failed for good."""
        self._say({"call": index, "outcomes": [plain_outcome(outcome) for outcome in outcomes]})
        return any(outcome.failed_for_good for outcome in outcomes)

    def _say(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._pid:  # a function that forks returns in both processes
            os._exit(0)
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]


def _calls(request: dict[str, Any]) -> list[Call]:
    prompts = [json.dumps(plain) for plain in request["prompts"]]
    readings = [reading_of(plain) for plain in request["readings"]]
    return [list(_candidates(prompts, readings, call)) for call in request["calls"]]


def _prompt(plain: dict[str, Any]) -> Prompt:
    """Returns the prompt of which `plain` has the fields."""
    lists = {name: tuple(plain[name]) for name in ("media", "other_answers", "tools")}
    messages = {name: tuple(map(Message.of_plain, plain[name])) for name in ("messages", "reply")}
    return Prompt(**{**plain, **lists, **messages})


def _candidates(
    texts: Sequence[str], readings: Sequence[Reading], call: Sequence[dict[str, Any]]
) -> Iterator[Candidate]:
    """Yields the candidates of a call. Its prompts are its own: a function that changes a row affects no other call.

    texts: the prompts as JSON, which is parsed faster than values are copied.
    """
    numbers = dict.fromkeys(one["prompt"] for one in call)
    prompts = {number: _prompt(json.loads(texts[number])) for number in numbers}
    for one in call:
        completion = Completion.of_turns(
            text=one["text"],
            spoken=one["spoken"] or [one["text"]],
            tokens=one["tokens"],
            stop_reason=one["stop_reason"],
            token_ids=one["token_ids"],
            reading=readings[one["reading"]],
        )
        yield Candidate(prompts[one["prompt"]], completion, one["reads"], tuple(one["steps"]))


def main() -> int:
    """Starts the inner process, and ends it and its descendants when it ends or the leash is cut."""
    leash = int(sys.argv[1])
    guard = os.getpid()
    adopt_orphans()
    answers = os.dup(1)
    requests = os.dup(0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        if os.getppid() == guard:
            os.close(leash)
            adopt_orphans()
            with os.fdopen(requests, "rb") as lines:
                Server(lines, answers).run()
        return 0
    os.close(requests)
    ended = os.pidfd_open(pid)
    cut = leash in select.select([leash, ended], [], [])[0]
    os.kill(pid, 9)
    status = os.waitpid(pid, 0)[1]
    end_children()
    if not cut:
        # The line break ends what the inner process may have been writing.
        os.write(answers, b"\n" + json.dumps({"died": death(status)}).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
