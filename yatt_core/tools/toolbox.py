"""A controller's tools: answers calls in a separate process (`yatt_core.tools.process`), whatever the tools do.

Consumes calls at any time. Produces answers as they arrive, each for itself. A tool that hangs, raises, takes too much memory or
dies results in an answer that reports this. Only if the tool process itself is lost or does not respond, or if what a tool asks
answers nobody, is this an infrastructure failure: it is raised once every answer that has come has been returned, so that calls
that were answered need not be made again.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.availability import Attempts, Availability
from yatt_core.errors import IS_AWAY, AwayError, InfrastructureError, YattError
from yatt_core.prompts.tool_calls import UNKNOWN, ToolAnswer, ToolCall
from yatt_core.redoing import RETRIES, pause_seconds
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools.process import ToolProcess

KEPT_SECONDS = 600.0
"""How long the answer to a call that was made to see whether a service answers serves the call that asked first, or an equal
one."""
LOOK_SECONDS = 60.0
"""Maximum time of one wait for answers, after which is looked whether the process still responds."""
NO_ANSWER = ToolAnswer("")


@dataclass(slots=True)
class _Asked:
    """A call that has no answer yet.

    number: the one under which its answer is wanted.
    sent: when it was made last, in seconds of the monotonic clock.
    attempts: what follows if a service does not answer it; None before the first failure.
    failure: what stands for its answer if it has failed.
    due: when it is made again, if it is.
    """

    number: int
    call: ToolCall
    sent: float
    attempts: Attempts | None = None
    failure: ToolAnswer = NO_ANSWER
    due: float = 0.0

    @property
    def failed_before(self) -> float:
        """When the attempt before the newest had failed, or the first one was made."""
        return self.sent if self.attempts is None else self.attempts.since


@dataclass(slots=True)
class _Witness:
    """A call that was answered before and is made again, to see whether the tool's service answers anybody.

    asked: the calls that wait for its answer.
    """

    asked: list[_Asked]
    call: ToolCall
    sent: float


class Toolbox:
    """The tools of a spec; empty for a run without tools.

    run_folder: folder of the run, which has its own copies of files with tools; None before there is a run.

    The tool process starts with the first call and ends with this process.
    """

    def __init__(self, spec: ToolsSpec | None, run_folder: Path | None = None) -> None:
        self._tools = {tool.name: tool for tool in spec.functions} if spec else {}
        self._spec = spec
        self._run_folder = run_folder
        self._process = None if spec is None else ToolProcess(spec, run_folder)
        # By tool: what is known of the service that it asks.
        self._services: dict[str, Availability] = {}
        # By tool, if it is deterministic: a call that was answered and may be made again.
        self._answered: dict[str, ToolCall] = {}
        # By tool: a call that had no answer when its service was found to be away.
        self._unanswered: dict[str, ToolCall] = {}
        # Answers to calls of `answers`, by the call, each with its time.
        self._found: dict[str, tuple[float, ToolAnswer]] = {}
        # Calls in progress, by their number within the process, those that are made again later, and witnesses by tool.
        self._made: dict[int, _Asked | _Witness] = {}
        self._paused: list[_Asked] = []
        self._witnesses: dict[str, _Witness] = {}
        self._ready: deque[tuple[int, ToolAnswer]] = deque()
        # What is raised once nothing is in progress, and the tools that are not called until then.
        self._error: YattError | None = None
        self._given_up: set[str] = set()
        self._numbers = itertools.count()

    def beside(self) -> Toolbox:
        """Returns a toolbox with calls and a process of its own that shares what is known of the tools' services."""
        other = Toolbox(self._spec, self._run_folder)
        other._services = self._services
        other._answered = self._answered
        other._unanswered = self._unanswered
        other._found = self._found
        return other

    def answer(self, calls: Mapping[int, ToolCall | ToolAnswer]) -> Iterator[tuple[int, ToolAnswer]]:
        """Yields answers to calls by number, in the order in which they arrive; results never depend on that order.

        If it is closed before its end, the calls in progress end. Raises as `arrived` does.
        """
        left = set(calls)
        try:
            self.begin(calls)
            while left:
                for number, answer in self.arrived(LOOK_SECONDS):
                    left.remove(number)
                    yield number, answer
        finally:
            if left:
                self.close()

    def begin(self, calls: Mapping[int, ToolCall | ToolAnswer]) -> None:
        """Makes calls, whose answers `arrived` returns by number; no open call has the same one.

        An invalid call is its own answer. That a call cannot be made is raised by `arrived`. As long as `arrived` has an error to
        raise, calls of the tools that it concerns are dropped: `arrived` returns no answer to them.
        """
        now = time.monotonic()
        wanted = []
        for number, call in calls.items():
            if isinstance(call, ToolAnswer):
                self._ready.append((number, call))
            elif call.name not in self._tools:
                known = ", ".join(sorted(self._tools))
                reason = f"there is no tool {call.name[:100]!r}; there are: {known}"
                self._ready.append((number, ToolAnswer.failed(UNKNOWN, reason)))
            elif (found := self._kept(call)) is not None:
                self._ready.append((number, found))
            elif call.name not in self._given_up:
                wanted.append(_Asked(number=number, call=call, sent=now))
        with self._errors_kept():
            self._make(wanted)

    def arrived(self, seconds: float = 0.0) -> list[tuple[int, ToolAnswer]]:
        """Returns the answers that have arrived, by number; waits for the first so many seconds at most.

        A call that a service did not answer is made again before it has failed.

        Raises what has gone wrong once all answers that have come have been returned; all open calls end with that.
        `ConfigurationError` and `InfrastructureError` as `ToolProcess` does: at once, also instead of an `AwayError` that has not
        been raised yet. `AwayError` if what a tool asks answers no call: once the calls of the other tools have ended, also those
        that are begun until then. The tool's own calls are not waited for: they have to be made again.
        """
        with self._errors_kept():
            self._repeat()
            if not self._ready:
                self._wait(seconds if self._has_open() else 0.0)
        found = list(self._ready)
        self._ready.clear()
        error = self._error
        if error is not None and not (found or self._has_open()):
            self.close()
            raise error
        return found

    def _has_open(self) -> bool:
        """Returns whether calls have no answer yet of tools that are still called."""
        return bool(self._paused) or any(one.call.name not in self._given_up for one in self._made.values())

    def _make(self, calls: Sequence[_Asked | _Witness]) -> None:
        if not calls:
            return
        numbered = {next(self._numbers): one for one in calls}
        self._made |= numbered
        self._running().send({number: one.call for number, one in numbered.items()})

    def _running(self) -> ToolProcess:
        if self._process is None:
            raise InfrastructureError("a tool was called in a run without tools")
        return self._process

    def _repeat(self) -> None:
        """Makes the calls again whose pause is over."""
        now = time.monotonic()
        due = [one for one in self._paused if one.due <= now]
        self._paused = [one for one in self._paused if one.due > now]
        for one in due:
            one.sent = now
        self._make(due)

    def _wait(self, seconds: float) -> None:
        """Takes what has arrived; waits for it so many seconds at most, and not longer than until a call is made again."""
        pause = min((one.due for one in self._paused), default=math.inf) - time.monotonic()
        seconds = max(0.0, min(seconds, pause))
        if not self._made:
            time.sleep(seconds if self._paused else 0.0)
            return
        for line in self._running().receive(seconds):
            one = self._made.pop(int(line["number"]))
            self._take(one, _answer_of(one.call.name, line))

    def _take(self, one: _Asked | _Witness, answer: ToolAnswer) -> None:
        """Takes an answer, or decides what follows if there is none."""
        name = one.call.name
        known = self._services.setdefault(name, Availability())
        if answer.is_unavailable:
            known.failed()
        else:
            known.answered(time.monotonic(), one.sent)
            self._unanswered.pop(name, None)
        if isinstance(one, _Witness):
            del self._witnesses[name]
            for asked in one.asked:
                # It says nothing of a call that had failed before in the time since it was sent.
                self._follow(asked, can_see=asked.failed_before >= one.sent)
        elif answer.is_unavailable:
            one.failure = ToolAnswer("", answer.error)
            one.attempts = one.attempts or Attempts(RETRIES, since=one.sent)
            self._follow(one, can_see=name in self._answered)
        else:
            if self._tools[name].deterministic:
                self._answered[name] = one.call
            self._ready.append((one.number, answer))

    def _follow(self, one: _Asked, can_see: bool) -> None:
        """Decides what follows the newest failure of a call. can_see: whether another call can show if anything is answered."""
        name = one.call.name
        if name in self._given_up:
            return
        now = time.monotonic()
        assert one.attempts is not None
        step = one.attempts.after_failure(self._services[name], now, can_see)
        if step == "failed":
            self._ready.append((one.number, one.failure))
        elif step == "see" and name in self._witnesses:
            self._witnesses[name].asked.append(one)
        elif step == "see":
            self._witnesses[name] = _Witness(asked=[one], call=self._answered[name], sent=now)
            self._make([self._witnesses[name]])
        elif step == "away":
            self._unanswered[name] = one.call
            self._give_up([name], AwayError(f"{_service_of(name)}{IS_AWAY}{one.failure.error}"))
        else:
            one.due = now if step == "again" else now + pause_seconds(one.attempts.pauses)
            self._paused.append(one)

    def _give_up(self, tools: Collection[str], error: YattError) -> None:
        """Calls some tools no more until an error has been raised; what is in progress may still be answered."""
        # A service that is away is found to be so again. Anything else would stay hidden, since only the service is waited for.
        if self._error is None or (isinstance(self._error, AwayError) and not isinstance(error, AwayError)):
            self._error = error
        self._given_up.update(tools)
        self._paused = [one for one in self._paused if one.call.name not in self._given_up]

    def answers(self, dependency: str) -> bool | None:
        """Returns whether what a tool asks answers again; None if something else is away.

        The call that is made for that is one that was answered before, if it may be repeated. Otherwise it is one that got
        no answer; its answer is kept for the next call that equals it, so that nothing is done twice.
        """
        name = next((name for name in self._unanswered if _service_of(name) == dependency), None)
        if name is None:
            return None
        known = self._answered.get(name)
        call = known or self._unanswered[name]
        if _identity(call) in self._found:
            return True
        answer = self._answer_to(call)
        if not answer.is_unavailable and known is None:
            self._found[_identity(call)] = time.monotonic(), answer
        return not answer.is_unavailable

    def _answer_to(self, call: ToolCall) -> ToolAnswer:
        """Makes a call once, beside no other."""
        lines: list[dict[str, Any]] = []
        with self._closed_by_errors():
            process = self._running()
            process.send({next(self._numbers): call})
            while not lines:
                lines = process.receive(LOOK_SECONDS)
        return _answer_of(call.name, lines[0])

    def _kept(self, call: ToolCall) -> ToolAnswer | None:
        """Returns the answer to a call that was made to see whether a service answers, once, and soon after."""
        at, answer = self._found.pop(_identity(call), (0.0, None))
        return answer if time.monotonic() - at < KEPT_SECONDS else None

    def close(self) -> None:
        """Ends the process with all open calls; the next call starts a new one."""
        self._made.clear()
        self._paused.clear()
        self._ready.clear()
        self._witnesses.clear()
        self._given_up.clear()
        self._error = None
        if self._process is not None:
            self._process.close()

    @contextmanager
    def _errors_kept(self) -> Iterator[None]:
        """Keeps an error that is raised inside for `arrived`, and ends all calls in progress; answers that have come stay."""
        with self._closed_by_errors():
            try:
                yield
            except YattError as error:
                self._give_up(self._tools, error)
                self._made.clear()
                self._witnesses.clear()
                if self._process is not None:
                    self._process.close()

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Ends all open calls if an error is raised inside: an answer in progress must not be taken for that of a later call."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.close()


def _service_of(tool: str) -> str:
    """Returns the name of what a tool asks, for messages."""
    return f"what tool {tool!r} asks"


def _identity(call: ToolCall) -> str:
    return json.dumps([call.name, dict(call.arguments)], sort_keys=True)


def _answer_of(tool: str, answer: Mapping[str, Any]) -> ToolAnswer:
    if "value" in answer:
        return ToolAnswer(answer["value"])
    return ToolAnswer.failed(answer["kind"], answer["reason"], tool)
