"""The scoring process's side of the reward process: starts it, asks it, and replaces it when a function breaks it.

Consumes functions to load and their calls. Produces outcomes. A function that hangs although its time limit has
interrupted it has failed on the candidates of that call. So has one whose process ends twice during the call; a process
that ends once may have been killed from outside, so the call is repeated. The calls after it are made in a new process,
so that each outcome is the same as if the call had been the only one.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.calls import PROCESS, TIME_LIMIT, Call, CallLimits, RewardOutcome, broken, outcome_of, too_long
from yatt_core.rewards.conventions import TOKEN_IDS, Unit
from yatt_core.rewards.registry import FunctionName

START_SECONDS = 120.0
"""Time limit for importing a function's module."""
GRACE_SECONDS = 5.0
"""Added to the time limit of a call, which first interrupts the call; afterwards its process is ended."""
END_SECONDS = 10.0
"""Time limit for the process to end after its leash is cut."""
GATHER_SECONDS = 0.001
"""How long answers are gathered before they are read."""
DEATHS = 2
"""Number of times that the process must end during a call before the call has failed."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function that can be called in the reward process.

    identity: a text that identifies the function with its options.
    """

    name: FunctionName
    identity: str
    unit: Unit
    facts: Sequence[str]
    awaits: bool
    blames_response: bool
    takes_steps: bool


class ProcessLostError(Exception):
    """The process has ended; the text is the reason."""


class ProcessSilentError(ProcessLostError):
    """The process did not answer in time."""


class RewardProcess:
    """The reward process of this process. It starts with the first function, and ends with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._leash = -1
        self._unread = bytearray()
        self._keys: dict[str, int] = {}
        self._known = set[str]()
        self._loads = 0
        self._lock = threading.Lock()

    def load(self, name: FunctionName) -> Loaded:
        """Loads a function.

        Raises `ConfigurationError` as `registry.resolve` does, and if importing it ends the process or takes too long;
        `InfrastructureError` if the same import has succeeded before.
        """
        identity = json.dumps(asdict(name), sort_keys=True)
        with self._lock:
            key = self._keys.get(identity, self._loads)
            try:
                self._start()
                self._send({"load": asdict(name), "key": key})
                answer = self._receive(START_SECONDS)
            except ProcessLostError as lost:
                self.close()
                if identity in self._known:
                    raise InfrastructureError(f"{name.place}: importing it again failed: {lost}") from None
                raise ConfigurationError(f"{name.place}: its import failed: {lost}") from None
            if "refused" in answer:
                raise ConfigurationError(answer["refused"])
            self._keys[identity] = key
            self._loads = self._loads + 1
            self._known.add(identity)
            return Loaded(name, identity, **answer["loaded"])

    def evaluate(
        self, loaded: Loaded, calls: Sequence[Call], limits: CallLimits, stop: bool
    ) -> list[list[RewardOutcome]]:
        """Returns the outcomes of each call.

        stop: make no further calls after one that has failed for good; calls that were not made have no outcomes.
        """
        outcomes: list[list[RewardOutcome]] = [[] for _ in calls]
        left = list(range(len(calls)))
        deaths = Counter[int]()
        one_by_one = False
        while left and not _stopped(outcomes, stop):
            part = left[:1] if one_by_one else left
            lost = self._evaluate(loaded=loaded, calls=calls, part=part, limits=limits, stop=stop, outcomes=outcomes)
            left = [index for index in left if not outcomes[index]]
            unanswered = [index for index in part if not outcomes[index]]
            if lost is None or not unanswered or _stopped(outcomes, stop):
                continue
            if loaded.awaits and len(part) > 1:
                # The calls shared their process: repeating them one at a time shows which one broke it.
                one_by_one = True
                continue
            running = unanswered[0]  # the calls are made in order
            deaths[running] += 1
            if isinstance(lost, ProcessSilentError) or deaths[running] == DEATHS:
                cause = TIME_LIMIT if isinstance(lost, ProcessSilentError) else PROCESS
                outcomes[running] = [broken(str(lost), cause, loaded.blames_response)] * len(calls[running])
                left.remove(running)
        return outcomes

    def close(self) -> None:
        """Ends the process with everything that it has started; the next function starts a new one."""
        process = self._process
        self._process = None
        self._unread.clear()
        self._keys.clear()
        if process is None:
            return
        os.close(self._leash)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _evaluate(
        self,
        loaded: Loaded,
        calls: Sequence[Call],
        part: Sequence[int],
        limits: CallLimits,
        stop: bool,
        outcomes: list[list[RewardOutcome]],
    ) -> ProcessLostError | None:
        """Makes some of the calls, and adds their outcomes; returns why the process was lost, or None."""
        if loaded.identity not in self._keys:  # the process is a new one
            self.load(loaded.name)
        with self._lock:
            key = self._keys[loaded.identity]
            try:
                packed = _packed([calls[index] for index in part], TOKEN_IDS in loaded.facts)
                self._send({**packed, "key": key, "limits": asdict(limits), "stop": stop})
                while True:
                    answer = self._receive(limits.seconds + GRACE_SECONDS, too_long(limits.seconds))
                    if "end" in answer:
                        return None
                    outcomes[part[answer["call"]]] = [outcome_of(one) for one in answer["outcomes"]]
            except ProcessLostError as lost:
                self.close()
                return lost

    def _start(self) -> None:
        if self._process is not None:
            return
        leash, self._leash = os.pipe()
        # Everything importable in this process must be importable in the reward process.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "yatt_core.rewards.worker", str(leash)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                pass_fds=(leash,),
                start_new_session=True,
            )
        finally:
            os.close(leash)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None, "the process has been started"
        with suppress(BrokenPipeError):  # its last message says why it has ended
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, seconds: float, silence: str = "") -> dict[str, Any]:
        """Returns the next message. Raises `ProcessLostError` if the process has ended, or is silent for too long."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline, silence or too_long(seconds))
            try:
                message = json.loads(line)
            except ValueError:  # the process ended while it was writing this line, and the next line says how
                continue
            if "died" in message:
                raise ProcessLostError(message["died"])
            return dict(message)

    def _line(self, deadline: float, silence: str) -> bytes:
        """Returns the next line. Raises as `_receive` does."""
        while b"\n" not in self._unread:
            self._read(deadline, silence)
        line, _, self._unread = self._unread.partition(b"\n")
        return bytes(line)

    def _read(self, deadline: float, silence: str) -> None:
        """Reads what the process has written, once it has. Raises as `_receive` does."""
        assert self._process is not None and self._process.stdout is not None, "the process has been started"
        answers = self._process.stdout.fileno()
        written = select.poll()
        written.register(answers, select.POLLIN)
        if not written.poll(1000.0 * max(0.0, deadline - time.monotonic())):
            raise ProcessSilentError(silence)
        # Calls are short. Whoever woke up for each would cost more than they do.
        time.sleep(GATHER_SECONDS)
        data = os.read(answers, 1 << 16)
        if not data:
            raise ProcessLostError("its process has ended")
        self._unread += data


@functools.cache
def _process_of(pid: int) -> RewardProcess:
    process = RewardProcess()
    atexit.register(process.close)
    return process


def reward_process() -> RewardProcess:
    """Returns the reward process that belongs to this process; it is shared by all scorers."""
    return _process_of(os.getpid())


def _stopped(outcomes: Sequence[Sequence[RewardOutcome]], stop: bool) -> bool:
    """Returns whether a call has failed, and no further calls are to be made after a failure."""
    return stop and any(outcome.failed_for_good for call in outcomes for outcome in call)


def _packed(calls: Sequence[Call], with_tokens: bool) -> dict[str, Any]:
    """Returns calls as plain values; each prompt appears once, and so does what responses are read by.

    with_tokens: whether the function takes the responses' tokens.
    """
    prompts: dict[int, int] = {}
    readings: dict[int, int] = {}
    packed_prompts = list[dict[str, Any]]()
    packed_readings = list[dict[str, Any]]()
    packed_calls = list[list[dict[str, Any]]]()
    for call in calls:
        packed = list[dict[str, Any]]()
        for candidate in call:
            if id(candidate.prompt) not in prompts:
                prompts[id(candidate.prompt)] = len(packed_prompts)
                packed_prompts.append(_plain(candidate.prompt))
            completion = candidate.completion
            if id(completion.reading) not in readings:
                readings[id(completion.reading)] = len(packed_readings)
                packed_readings.append(asdict(completion.reading))
            turns = completion.turns
            packed.append(
                {
                    "prompt": prompts[id(candidate.prompt)],
                    "reads": candidate.reads,
                    "text": completion.text,
                    "spoken": [turn.text for turn in turns] if len(turns) > 1 else None,
                    "tokens": completion.tokens,
                    "stop_reason": completion.stop_reason,
                    "token_ids": completion.token_ids if with_tokens else (),
                    "steps": candidate.steps,
                    "reading": readings[id(completion.reading)],
                }
            )
        packed_calls.append(packed)
    return {"prompts": packed_prompts, "readings": packed_readings, "calls": packed_calls}


def _plain(prompt: Prompt) -> dict[str, Any]:
    """Returns the fields of a prompt, without copying its row."""
    plain = {field.name: getattr(prompt, field.name) for field in fields(prompt)}
    messages = {name: [message.plain() for message in getattr(prompt, name)] for name in ("messages", "reply")}
    return {**plain, **messages}
