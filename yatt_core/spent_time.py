"""Where a process's time goes: named parts of its work, each of a kind, whose seconds add up to the time worked.

Consumes nothing but a clock; produces `SpentTime`, the seconds of each part since they were last taken. `TimeAccount.work`
begins work; anything below it may name what it does with `spent`, which has no effect outside such work.

Several threads may work at once. Each moment counts once, for the part whose kind comes first in `KINDS`: a process of
which one thread computes while another waits, computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ENGINE, WEIGHTS, REWARDS, TOOLS, DATA, LEDGER, PREFECT, RAY, OTHER, WAITING = KINDS = (
    "engine",
    "weights",
    "rewards",
    "tools",
    "data",
    "ledger",
    "prefect",
    "ray",
    "other",
    "waiting",
)
"""What time is spent on. The last ones: whatever has no name, and work of others."""
PARTS = 256
"""Maximum number of different parts between two readings; all further ones are counted together."""
FURTHER = ("further parts",)
_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class SpentTime:
    """The time of a part, without that of the parts within it.

    path: the names of the parts around it, the outermost first, and its own.
    kind: one of `KINDS`.
    calls: how often the part ended.
    """

    path: tuple[str, ...]
    kind: str
    seconds: float
    calls: int


@dataclass(slots=True, eq=False)
class _Work:
    """Work in progress in one thread, or in one of many tasks of a thread: the current part and its kind."""

    account: TimeAccount
    path: tuple[str, ...]
    kind: str
    is_over: bool = False


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    calls: int = 0


class _Here(threading.local):
    """The work of a thread."""

    work: _Work | None = None


_here = _Here()


class TimeAccount:
    """The account of one process; thread-safe.

    clock: returns seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # While the lock is held, a collection of garbage may close an abandoned generator in this thread, which charges too.
        self._lock = threading.RLock()
        self._works: list[_Work] = []
        self._sums: dict[tuple[tuple[str, ...], str], _Sum] = {}
        self._at = clock()

    @contextmanager
    def work(self, *path: str, kind: str = OTHER, alone: bool = False) -> Iterator[None]:
        """Counts the time inside as a part of this kind, but for the parts within it.

        path: what the work is, and within what.
        alone: whether the thread does other work at the same time, as in an event loop; `spent` then has no effect.
        """
        work = _Work(self, path, kind)
        outer = _here.work
        with self._lock:
            self._charge()
            self._works.append(work)
        if not alone:
            _here.work = work
        try:
            yield
        finally:
            with self._lock:
                self._charge()
                self._works.remove(work)
                self._sum(work).calls += 1
                work.is_over = True
            if _here.work is work:  # an abandoned generator may be closed in another thread
                _here.work = outer

    def take(self) -> tuple[SpentTime, ...]:
        """Returns what was spent since the last call, in work that has ended or not."""
        with self._lock:
            self._charge()
            sums = self._sums
            self._sums = {}
        return tuple(SpentTime(path, kind, one.seconds, one.calls) for (path, kind), one in sums.items())

    @contextmanager
    def part(self, work: _Work, kind: str, name: str) -> Iterator[None]:
        """Counts the time inside as a part of work in progress; see `spent`."""
        path = work.path
        outer_kind = work.kind
        with self._lock:
            self._charge()
            work.path = (*path, name)
            work.kind = kind
        try:
            yield
        finally:
            with self._lock:
                self._charge()
                self._sum(work).calls += 1
                work.path = path
                work.kind = outer_kind

    def _charge(self) -> None:
        """Counts the time since the last change for the work that matters most. The lock is held."""
        now = self._clock()
        if self._works and now > self._at:
            self._sum(min(self._works, key=lambda work: _RANKS[work.kind])).seconds += now - self._at
        self._at = now

    def _sum(self, work: _Work) -> _Sum:
        key = (work.path, work.kind)
        if key not in self._sums and len(self._sums) >= PARTS:
            key = (FURTHER, OTHER)
        return self._sums.setdefault(key, _Sum())


@contextmanager
def spent(kind: str, name: str) -> Iterator[None]:
    """Names a part of the work in progress in this thread; does nothing if there is none."""
    work = _here.work
    if work is None or work.is_over:
        yield
        return
    with work.account.part(work, kind, name):
        yield
