"""A run executed by processes that die at each of the ledger's steps; imports only `db`.

sweep.py ADDRESS FOLDER   walk through run toy-1 undisturbed, then through toy-2 with a death at each of toy-1's steps

A step is the moment before a statement, before a COMMIT, or after it. The next process knows only the ledger; it
continues and dies at the next step. Prints the steps, and those at which a process died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow, ChoiceRow, ShardRow
from tests.db.tools import commit_of

TARGET = 1
SHARDS = 2


class Steps:
    """Names every step after the walk's current action, and calls `reached` with the name."""

    def __init__(self, ledger: Ledger, reached: Callable[[str], None]) -> None:
        self._reached = reached
        self._doing = ""
        self._count = 0
        self._engine = ledger._database.engine
        event.listen(self._engine, "before_cursor_execute", self._before_statement)
        dialect: Any = self._engine.dialect
        self._do_commit = type(dialect).do_commit.__get__(dialect)
        dialect.do_commit = self._commit

    @contextmanager
    def doing(self, name: str) -> Iterator[None]:
        self._doing = name
        self._count = 0
        yield
        self._doing = ""

    def _before_statement(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        # Whether a connection's setting has to change depends on what it did before, which a new process has not done.
        if not statement.startswith("PRAGMA"):
            self._step("statement")

    def _commit(self, connection: Any) -> None:
        self._step("COMMIT")
        self._do_commit(connection)
        self._step("committed")

    def _step(self, kind: str) -> None:
        if self._doing:
            self._count += 1
            self._reached(f"{self._doing} {self._count} {kind}")


class Walk:
    """Completes a run from the state of the ledger."""

    def __init__(self, ledger: Ledger, run: str, tracker: Path, steps: Steps) -> None:
        self.ledger = ledger
        self.run = run
        self.tracker = tracker
        self.steps = steps

    def walk(self) -> None:
        with self.steps.doing("acquire"):
            fence = self.ledger.leases.acquire(self.run, this_process("walker"), ttl_seconds=600)
        for iteration in range(TARGET + 1):
            latest = self.ledger.commits.latest(self.run)
            if latest is None or latest.iteration < iteration:
                self._iterate(fence, iteration)
            self._checkpoint(fence, iteration)
        self._deliver(fence)
        with self.steps.doing("release"):
            self.ledger.leases.release(fence)

    def _iterate(self, fence: Fence, iteration: int) -> None:
        if iteration > 0:
            self._phase(fence, iteration, "collect", lambda: self._collect(fence, iteration))
            self._phase(fence, iteration, "learn", lambda: None)
        with self.steps.doing(f"commit of {iteration}"):
            self.ledger.commits.commit(fence, commit_of(iteration))

    def _phase(self, fence: Fence, iteration: int, name: str, body: Callable[[], None]) -> None:
        if self.ledger.phases.done(self.run, 0, iteration, name) is not None:
            return
        with self.steps.doing(f"plan of {name}"):
            attempt = self.ledger.phases.plan(fence, 0, iteration, name)
        with self.steps.doing(f"dispatch of {name}"):
            self.ledger.phases.dispatch(fence, attempt)
        body()
        with self.steps.doing(f"finish of {name}"):
            self.ledger.phases.finish(fence, attempt, {"iteration": iteration}, 1.0)

    def _collect(self, fence: Fence, iteration: int) -> None:
        recorded = {row.shard for row in self.ledger.records.shards(self.run, 0, iteration)}
        for shard in set(range(SHARDS)) - recorded:
            row = ShardRow(0, iteration, 0, shard, fence.term, f"s{shard}", f"sha {shard}", 4, 9, b"d" * 32, {"r": 1.0})
            with self.steps.doing(f"shard {shard}"):
                self.ledger.records.shard(fence, row)
        if "skip" not in self.ledger.records.choices(self.run, 0, iteration):
            with self.steps.doing("choice"):
                self.ledger.records.choice(fence, ChoiceRow(0, iteration, "skip", {"shards": [1]}))

    def _checkpoint(self, fence: Fence, iteration: int) -> None:
        if not any(row.iteration == iteration for row in self.ledger.records.checkpoints(self.run)):
            row = CheckpointRow(self.run, 0, iteration, fence.term, f"s{iteration}", "sha", 10, "weights", 0.1)
            with self.steps.doing(f"checkpoint {iteration}"):
                self.ledger.records.checkpoint(fence, row)
        entry = OutboxEntry(f"{self.run}/checkpoint-{iteration}", "tags", {"iteration": iteration}, 7)
        with self.steps.doing(f"outbox of checkpoint {iteration}"):
            self.ledger.outbox.enqueue(fence, [entry])

    def _deliver(self, fence: Fence) -> None:
        with self.steps.doing("claim"):
            rows = self.ledger.outbox.claim(fence)
        for row in rows:
            with self.tracker.open("a") as file:
                file.write(json.dumps([row.id.removeprefix(self.run), row.logged_at_ms]) + "\n")
            with self.steps.doing(f"delivery of {row.id.removeprefix(self.run)}"):
                self.ledger.outbox.delivered(fence, [row.id])


def die_at(ledger: Ledger, label: str, tracker: Path) -> bool:
    """Walks in a child that dies at the step; returns whether it did, raises `RuntimeError` on other failures."""
    ledger._database.engine.dispose()
    child = os.fork()
    if child == 0:

        def reached(name: str) -> None:
            if name == label:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            Walk(ledger, "toy-2", tracker, Steps(ledger, reached)).walk()
        finally:
            sys.stdout.flush()
            os._exit(sys.exc_info()[0] is not None)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    if os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the process that should die at {label!r} failed")
    return False


def main(address: str, folder: str) -> None:
    labels: list[str] = []
    with Ledger.open(address) as ledger:
        for _ in range(2):
            ledger.runs.create("toy", {}, "d", TARGET)
        Walk(ledger, "toy-1", Path(folder) / "undisturbed", Steps(ledger, labels.append)).walk()
        recorded = list(labels)
        died = [label for label in recorded if die_at(ledger, label, Path(folder) / "swept")]
        die_at(ledger, "nowhere", Path(folder) / "swept")
    sys.stdout.write(json.dumps({"steps": recorded, "died": died}))


if __name__ == "__main__":
    main(*sys.argv[1:])
