"""What a run does while things are away: a thread that looks at it a few times a second.

Consumes the ledger, by a way that no gate is in front of, and the run's folder. Produces when the run made progress, what it
waited for and since when, whether it had given its devices back, and when each verdict of a judge was on disk.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from db.core.engine import database_url, open_engine
from db.core.models import AttemptRow, RunTable, Shard
from db.core.wait_models import RunWait
from flows.run.waiting_file import NAME as WAITING_FILE
from yatt_core.experience.chunks import read_chunk

LOOK_SECONDS = 0.25
NO_PROGRESS = ("start", "recover")
"""Phases whose end is no progress of the run."""
UNASKED_ENDS = ("failed", "paused")
_JUDGED = re.compile(r"batch-(\d+)\.judged-\d+\.arrow")
_SHARD = re.compile(r"(w\d+-s\d+)\.t\d+.*")

Place = tuple[str, str, int, int]
"""Of a verdict: the iteration's folder, the shard, the decode batch and the response's number in it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a run waits for. Times are milliseconds since 1970.

    since: when it was found to be away.
    returned_at: when the run gave its devices back; None while it holds them.
    """

    dependency: str
    since: int
    returned_at: int | None


@dataclass
class Seen:
    """What was seen of a run. Times are milliseconds since 1970.

    progress: when a shard was recorded, or a phase was done that is progress.
    waits: each wait, as it was when it was last seen, and when that was.
    durable: when each verdict was on disk.
    ends: the states in which a run was found that nobody had stopped.
    iteration: the last that is committed; -1 before the first.
    wait: what the run waits for now.
    """

    progress: list[int] = field(default_factory=list)
    waits: dict[tuple[str, int], tuple[Wait, int]] = field(default_factory=dict)
    durable: dict[Place, int] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    iteration: int = -1
    state: str = ""
    wait: Wait | None = None


class Watch:
    """Watches one run; a context manager.

    address: the ledger's, without a gate.
    folder: the run's.
    """

    def __init__(self, address: str, run: str, folder: Path) -> None:
        self._engine = open_engine(database_url(address))
        self._run = run
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)
        self._steps: tuple[int, int] | None = None
        self._read: set[Path] = set()
        self.seen = Seen()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._engine.dispose()

    def progress_since(self, moment: int) -> int | None:
        """Returns when the run made its first progress after a moment; None if it has made none."""
        return next((at for at in list(self.seen.progress) if at >= moment), None)

    def _look_on(self) -> None:
        looks: tuple[Callable[[], None], ...] = (self._look_at_ledger, self._look_at_file, self._look_at_verdicts)
        while not self._ended.wait(LOOK_SECONDS):
            for look in looks:
                with suppress(SQLAlchemyError, OSError):
                    look()

    def _look_at_ledger(self) -> None:
        progress = AttemptRow.state == "DONE", AttemptRow.phase.not_in(NO_PROGRESS)
        with self._engine.connect() as connection:
            shards = connection.scalar(select(func.count()).where(Shard.run == self._run)) or 0
            phases = connection.scalar(select(func.count()).where(AttemptRow.run == self._run, *progress)) or 0
            state, iteration = connection.execute(
                select(RunTable.state, RunTable.iteration).where(RunTable.id == self._run)
            ).one()
            wanted = select(RunWait.dependency, RunWait.since, RunWait.returned_at).where(RunWait.run == self._run)
            row = connection.execute(wanted).one_or_none()
        now = now_ms()
        if self._steps is not None and self._steps != (shards, phases):
            self.seen.progress.append(now)
        self._steps = (shards, phases)
        if state in UNASKED_ENDS and state != self.seen.state:
            self.seen.ends.append(state)
        self.seen.state = state
        self.seen.iteration = -1 if iteration is None else iteration
        self.seen.wait = None if row is None else Wait(*row)
        self._note(self.seen.wait, now)

    def _look_at_file(self) -> None:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found = json.loads((self._folder / WAITING_FILE).read_bytes())
            wait = Wait(found["dependency"], found["since"], found["returned_at"])
            self.seen.wait = wait
            self._note(wait, now_ms())

    def _note(self, wait: Wait | None, now: int) -> None:
        if wait is None:
            return
        key = wait.dependency, wait.since
        if wait.returned_at is None and key in self.seen.waits:
            # The run takes its devices again before it has stopped to wait.
            wait = replace(wait, returned_at=self.seen.waits[key][0].returned_at)
        self.seen.waits[key] = wait, now

    def _look_at_verdicts(self) -> None:
        newest = sorted((self._folder / "experience").glob("b*/i*"))[-2:]
        for path in (path for each in newest for path in each.glob("w*/batch-*.judged-*.arrow")):
            name = _JUDGED.fullmatch(path.name)
            shard = _SHARD.fullmatch(path.parent.name)
            if path in self._read or name is None or shard is None:
                continue
            at = round(1000 * path.stat().st_mtime)
            chunk = read_chunk(path)
            self._read.add(path)
            for response in chunk.table.column("response").to_pylist() if chunk is not None else ():
                place = f"{path.parents[1].parent.name}/{path.parents[1].name}", shard[1], int(name[1]), response
                self.seen.durable.setdefault(place, at)


def now_ms() -> int:
    """Returns the milliseconds since 1970, which the ledger's clock counts, too."""
    return round(1000 * time.time())
