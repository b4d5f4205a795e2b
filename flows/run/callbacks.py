"""Callbacks that a spec names: observers of commits and of the end of a session, written by users.

Consumes what the session tells its observer. Produces calls, in order, in a thread of the driver's process, so that a slow
callback delays neither a phase nor a commit. A callback sees plain values and cannot change a result. What it raises is a
warning, and is counted. A commit is reported at most once, by the session that made it; the ledger has them all.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.run.protocols import IterationSummary, Observer
from yatt_core.errors import ConfigurationError
from yatt_core.installed import error_place, failure_text, find_function
from yatt_core.logs import redact
from yatt_core.named_code import CodeFile, load_code
from yatt_core.spec.sections.callbacks import CallbackSpec

log = logging.getLogger("yatt_core.flow")
GROUP = "yatt.callbacks"
FAILED = "callbacks_failed"
"""The event with the number of failed calls of each callback in a session."""
METHODS = ("on_commit", "on_end")
WAITING = 1_000
"""Maximum number of calls that wait; further ones are dropped and counted as failed."""
PATIENCE_SECONDS = 10.0
"""How long the end of a session waits for its callbacks."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed iteration.

    target: the iteration after which the session ends: the run's last one, or an earlier one that was asked for (`--until`).
    metrics: the iteration's metrics by key (docs/formats.md).
    seconds: duration of the iteration.
    """

    run: str
    iteration: int
    target: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """The end of a session.

    state: completed, stopped, paused or failed.
    reason: why, without secrets.
    """

    run: str
    state: str
    reason: str


class Callback(Protocol):
    """An observer of a run; a class may have only one of the methods."""

    def on_commit(self, commit: Commit) -> None:
        """Is told of a committed iteration."""
        ...

    def on_end(self, end: End) -> None:
        """Is told that the session has ended."""
        ...


def find_callbacks(specs: Sequence[CallbackSpec], run_folder: Path | None = None) -> list[tuple[str, Any]]:
    """Returns the callbacks that a spec names, with their names.

    run_folder: folder of the run, which has its own copies of files; None before there is a run.

    Raises `ConfigurationError` if one cannot be found or made, or has none of the methods.
    """
    found = []
    for number, spec in enumerate(specs):
        if spec.file is None:
            place = f"callbacks.{number}.function: {spec.function!r}"
            make = find_function(spec.function or "", GROUP, place)
        else:
            place = f"callbacks.{number}.file"
            make = load_code(CodeFile.named(place, spec.file, spec.sha256), run_folder)
        try:
            callback = make(**spec.options)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{place}: {error_place(error)}: cannot be made: {failure_text(error)}") from error
        if not any(callable(getattr(callback, method, None)) for method in METHODS):
            raise ConfigurationError(f"{place}: {type(callback).__name__} has neither {' nor '.join(METHODS)}")
        found.append((spec.name, callback))
    return found


class CallbackObserver:
    """Passes everything on to the session's observer, and commits to the callbacks as well."""

    def __init__(self, inner: Observer, run: str, callbacks: Sequence[tuple[str, Any]]) -> None:
        self._inner = inner
        self._run = run
        self._callbacks = callbacks
        self._calls = queue.Queue[tuple[str, Commit | End] | None](WAITING)
        self.failures = Counter[str]()
        self._thread = threading.Thread(target=self._work, daemon=True, name="callbacks")
        self._thread.start()

    def stage(self, text: str) -> None:
        """Passes the text on."""
        self._inner.stage(text)

    def phase_started(self, iteration: int, phase: str) -> None:
        """Passes the phase on."""
        self._inner.phase_started(iteration, phase)

    def warned(self, text: str) -> None:
        """Passes the warning on."""
        self._inner.warned(text)

    def settled(self, text: str) -> None:
        """Passes the end of a warning on."""
        self._inner.settled(text)

    def committed(self, summary: IterationSummary) -> None:
        """Passes the commit on."""
        self._inner.committed(summary)
        metrics = dict(summary.metrics)
        self._add(
            "on_commit",
            Commit(
                run=self._run,
                iteration=summary.iteration,
                target=summary.target,
                metrics=metrics,
                seconds=summary.seconds,
            ),
        )

    def close(self, end: End | None) -> None:
        """Reports the end, if it is known, and waits for the callbacks, but not for long."""
        if end is not None:
            self._add("on_end", end)
        try:
            self._calls.put(None, timeout=PATIENCE_SECONDS)
            self._thread.join(PATIENCE_SECONDS)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self.warned(f"the callbacks are not finished after {PATIENCE_SECONDS:g} s; the session ends without them")

    def _add(self, method: str, told: Commit | End) -> None:
        try:
            self._calls.put_nowait((method, told))
        except queue.Full:
            for name, callback in self._callbacks:
                if hasattr(callback, method):
                    self._failed(name, method, f"{WAITING} calls are waiting, so this one is dropped")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            method, told = call
            for name, callback in self._callbacks:
                if not hasattr(callback, method):
                    continue
                try:
                    getattr(callback, method)(told)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code must not end the session
                    self._failed(name, method, f"{error_place(error)}: {failure_text(error)}")

    def _failed(self, name: str, method: str, why: str) -> None:
        self.failures[name] += 1
        text = f"callback {name}: {method} failed: {redact(why)}"
        log.warning("%s", text)
        if self.failures[name] == 1:
            self.warned(f"{text}; the run continues, further failures are counted")


@contextmanager
def with_callbacks(
    observer: Observer, run: str, specs: Sequence[CallbackSpec], ledger: str, run_folder: Path | None = None
) -> Iterator[tuple[Observer, Callable[[End], None]]]:
    """Yields an observer that tells the callbacks too, and a function that receives the session's end.

    run_folder: as for `find_callbacks`.
    ledger: the database's address, to record the number of failed calls of each callback if there were any.

    An exception is the end of a session too. Raises what `find_callbacks` raises.
    """
    if not specs:
        yield observer, lambda end: None
        return
    told = CallbackObserver(observer, run, find_callbacks(specs, run_folder))
    ends: list[End] = []
    try:
        yield told, ends.append
    except BaseException as error:
        ends.append(End(run, "failed", redact(failure_text(error))))
        raise
    finally:
        told.close(ends[0] if ends else None)
        if told.failures:
            _record(ledger, run, told.failures)


def _record(address: str, run: str, failures: Mapping[str, int]) -> None:
    """Records the number of failed calls; only logs it if the ledger cannot be reached, to keep the error of the session."""
    try:
        with Ledger.open(address) as ledger:
            ledger.events.append(run, FAILED, dict(failures))
    except LedgerError as error:
        log.warning(
            "run %s: failed calls of callbacks %s are not recorded: %s", run, dict(failures), redact(str(error))
        )
