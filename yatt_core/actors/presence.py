"""A small thread in every actor: follows drivers, notices their absence, and reports what the actor is doing.

Watches `RUN/supervisor/`: a newer term in `driver.json` raises the actor's fence (work in progress
continues); if the file is not touched for `grace` seconds, the actor exits; `stacks.json` requests the actor's
Python stacks, which the actor writes to `RUN/logs/stacks/REQUEST/ACTOR.json`. This needs a shared file system but no
signals, so the actor answers even while it works or hangs in Python. An actor that does not answer holds the
interpreter lock, is stopped, or is gone.
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

from yatt_core.cluster.reservation import leave_devices
from yatt_core.engines.train.ranks.waiting import NOTHING, current_waits
from yatt_core.fence import TermFence
from yatt_core.progress import latest_words, seconds_since_progress
from yatt_core.supervisor.state import DriverWatch, SupervisorFiles, driver_term

POLL_SECONDS = 0.25
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
    operation: the operation with other ranks in which it is waiting; empty if there is none.
    awaits: the other ranks that take part in the operation.
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
    awaits: tuple[int, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True)
class _Work:
    method: str
    since: float
    thread: int


class Presence:
    """An actor's fence and current activity. Created in the actor's constructor; its thread ends with the process."""

    def __init__(self, run_folder: Path, actor: str, term: int, grace: float) -> None:
        self._actor, self._grace = actor, grace
        self._files = SupervisorFiles.of(run_folder)
        self._answers = run_folder / "logs" / "stacks"
        self._driver = DriverWatch(self._files.driver)
        self._works: dict[int, _Work] = {}
        self._answered = _request(self._files)
        self.fence = TermFence(term, lambda: driver_term(self._files))
        threading.Thread(target=self._watch, name="presence", daemon=True).start()

    @contextmanager
    def serving(self, method: str, term: int) -> Iterator[None]:
        """Registers a call in progress. Raises `FencedError` if the caller's driver has been replaced."""
        self.fence.check(term)
        thread = threading.get_ident()
        self._works[thread] = _Work(method, time.monotonic(), thread)
        try:
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
            awaits=wait.ranks,
            words=latest_words(),
        )

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            if self._driver.silence() > self._grace:
                log.warning("no sign of a driver for %g s: %s exits", self._grace, self._actor)
                leave_devices()
                logging.shutdown()
                os._exit(GONE_EXIT_CODE)
            try:
                if self.fence.renew():
                    log.info("a driver of term %d has taken over", self.fence.term)
                self._answer()
            except (OSError, ValueError) as error:
                log.warning("cannot read or answer in %s: %s", self._files.root, error)

    def _answer(self) -> None:
        request = _request(self._files)
        if not request or request == self._answered:
            return
        self._answered = request
        write_report(self._answers / request, self.report())


def write_report(folder: Path, report: StackReport) -> None:
    """Publishes an actor's answer. It is not synced to disk, since it is not needed after a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{report.actor}"
    unfinished.write_text(json.dumps(asdict(report), indent=1))
    unfinished.rename(folder / f"{report.actor}.json")


def read_report(file: Path) -> StackReport | None:
    """Reads an actor's answer; None if it does not exist yet."""
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return StackReport(**{**value, "stacks": tuple(value["stacks"]), "awaits": tuple(value["awaits"])})


def _request(files: SupervisorFiles) -> str:
    """Returns the name of the newest request; empty if there is none."""
    try:
        return str(json.loads(files.stacks.read_text())["request"])
    except FileNotFoundError:
        return ""


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
