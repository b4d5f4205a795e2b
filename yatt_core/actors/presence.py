"""A small thread in every actor: follows drivers, notices their absence, and reports what the actor is doing.

Reads the drivers' signs in the run's control store (`cluster/driver_signs.py`): a newer term raises the actor's fence
(work in progress continues); if nothing changes for `grace` seconds, or the store cannot be reached, the actor exits; a
request is answered with the actor's Python stacks. This needs neither files nor signals, so the actor answers even while
it works or hangs in Python. An actor that does not answer holds the interpreter lock, is stopped, or is gone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from yatt_core.actors.call_kinds import kind_of_call
from yatt_core.cluster.control_store import ControlStore, RayControlStore
from yatt_core.cluster.driver_signs import Signs, Silence, newest_term, put_answer, read_signs
from yatt_core.cluster.reservation import leave_devices
from yatt_core.engines.train.ranks.waiting import NOTHING, current_waits
from yatt_core.errors import InfrastructureError
from yatt_core.fence import TermFence
from yatt_core.progress import latest_words, seconds_since_progress
from yatt_core.spent_time import TimeAccount
from yatt_core.tracing.calls import traced_call

POLL_SECONDS = 0.5
ANSWER_SECONDS = 10.0
GONE_EXIT_CODE = 17
WAITING = ("ray/_private/worker.py", ("get", "wait"))
"""A file and its functions in which one actor waits for another."""

log = logging.getLogger("yatt_core.presence")


@dataclass(frozen=True, slots=True)
class StackReport:
    """What an actor is doing.

    method: name of the call in progress; empty when idle.
    seconds: time since the call began.
    place: `file:line function` of the innermost frame.
    waits: whether it is waiting for another actor.
    operation: the operation with other actors in which it is waiting; empty if there is none.
    awaits: the names of the other actors that take part in the operation.
    progressed: seconds since it last finished a piece of its work, in any call; None if it never has.
    stacks: one per thread, the working thread's first.
    words: how far it has come with its work, for people; empty if unknown.
    """

    actor: str
    method: str
    seconds: float
    place: str
    waits: bool
    stacks: tuple[str, ...]
    progressed: float | None = None
    operation: str = ""
    awaits: tuple[str, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True)
class _Work:
    method: str
    since: float
    thread: int


class Presence:
    """An actor's fence and current activity. Created in the actor's constructor; its thread ends with the process.

    grace: seconds without a sign of a driver after which the actor exits.
    store: the control store of the run; by default that of the connected cluster.
    times: where the time of the actor's calls goes.
    """

    def __init__(self, actor: str, term: int, grace: float, store: ControlStore | None = None) -> None:
        self._actor, self._grace = actor, grace
        self._store = store or RayControlStore(min(ANSWER_SECONDS, grace))
        self._silence = Silence()
        self._works: dict[int, _Work] = {}
        self._answered: frozenset[str] = frozenset()
        self.times = TimeAccount()
        self.fence = TermFence(term, lambda: newest_term(self._store))
        threading.Thread(target=self._watch, name="presence", daemon=True).start()

    @contextmanager
    def serving(self, method: str, term: int) -> Iterator[None]:
        """Registers a call in progress. Raises `FencedError` if the caller's driver has been replaced."""
        self.fence.check(term)
        thread = threading.get_ident()
        self._works[thread] = _Work(method, time.monotonic(), thread)
        try:
            kind = kind_of_call(self._actor, method)
            with self.times.work(method, kind=kind), traced_call(self._actor, method, term):
                yield
        finally:
            del self._works[thread]

    def report(self) -> StackReport:
        """Reports what the actor is doing now; if several calls are in progress, the longest-running one."""
        work = min(list(self._works.values()), key=lambda each: each.since, default=None)
        frames = sys._current_frames()
        frames.pop(threading.get_ident(), None)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        first = work.thread if work is not None else threading.main_thread().ident
        stacks = [
            f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sorted(frames.items(), key=lambda item: item[0] != first)
        ]
        frame = frames.get(work.thread) if work is not None else None
        wait = next(iter(current_waits()), NOTHING)
        return StackReport(
            actor=self._actor,
            method=work.method if work is not None else "",
            seconds=round(time.monotonic() - work.since, 1) if work is not None else 0.0,
            place=_place(frame) if frame is not None else "",
            waits=wait is not NOTHING or (frame is not None and _waits(frame)),
            stacks=tuple(stacks),
            progressed=seconds_since_progress(),
            operation=wait.operation,
            awaits=wait.actors,
            words=latest_words(),
        )

    def _watch(self) -> None:
        reached = True
        while True:
            try:
                self._hear(read_signs(self._store))
                reached = True
            except InfrastructureError as error:
                if reached:
                    log.warning("no driver can be heard: %s", error)
                reached = False
            if self._silence.seconds > self._grace:
                log.warning("no sign of a driver for %g s: %s exits", self._grace, self._actor)
                leave_devices()
                logging.shutdown()
                os._exit(GONE_EXIT_CODE)
            time.sleep(POLL_SECONDS)

    def _hear(self, signs: Signs) -> None:
        self._silence.hear(signs)
        if signs.term > self.fence.term:
            self.fence.check(signs.term)
            log.info("a driver of term %d has taken over", signs.term)
        for request in signs.requests - self._answered:
            put_answer(self._store, request, self._actor, encode_report(self.report()))
        self._answered = signs.requests


def encode_report(report: StackReport) -> str:
    """Returns an actor's answer as text."""
    return json.dumps(asdict(report), indent=1)


def decode_report(answer: str) -> StackReport:
    """Reads an answer that `encode_report` wrote."""
    value = json.loads(answer)
    return StackReport(**{**value, "stacks": tuple(value["stacks"]), "awaits": tuple(value["awaits"])})


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"


def _waits(frame: FrameType) -> bool:
    """Returns True if the thread is in a function that waits for another actor."""
    current: FrameType | None = frame
    ending, functions = WAITING
    while current is not None:
        if current.f_code.co_filename.endswith(ending) and current.f_code.co_name in functions:
            return True
        current = current.f_back
    return False
