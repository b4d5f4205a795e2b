"""`yatt evaluate --suite SUITE --follow`: evaluates each checkpoint that a run keeps, in a process beside the run.

Consumes the ledger, which it asks again every few seconds, and a suite. Produces a row for each kept checkpoint. May be killed
and started again at any time, since the ledger knows what was evaluated; a lease lets only one process follow a run for a suite.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.home import Home
from ops.evaluation.suites import evaluated_once, open_for
from ops.presentation.output import message
from ops.terminal.lookup import find_run, opened_ledger

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.write.records import CheckpointRow
    from flows.run.home import Home
    from flows.run.lease import LeaseKeeper
    from yatt_core.evaluation.suites import SuiteSpec

POLL_SECONDS = 2.0
LEFT_SECONDS = 60.0
"""How long a run may be without a driver before its follower ends: a driver may be about to start."""


def follow(home: Home, run: str, path: Path, left_seconds: float = LEFT_SECONDS) -> None:
    """Evaluates the kept checkpoints of a run until it has had no driver for a while and none is left to evaluate."""
    from db.core.errors import LeaseHeld
    from db.core.subjects import SUITE, subject_of
    from flows.run.lease import LIFE_SECONDS, held
    from yatt_core.evaluation.suites import load_suite

    wanted = load_suite(path)
    with ExitStack() as stack:
        ledger = stack.enter_context(opened_ledger(home))
        name = find_run(ledger, run)
        subject = subject_of(SUITE, f"{name}/{wanted.name}")
        work = f"yatt evaluate --follow of {name}"
        try:
            # A follower on a host that was lost holds the lease until it ends; one that is alive renews it.
            lease = stack.enter_context(held(ledger, subject, work, patience=LIFE_SECONDS))
        except LeaseHeld as error:
            message(f"{name}: another process follows it for suite {wanted.name}: {error.holder}")
            return
        _follow(home=home, ledger=ledger, name=name, wanted=wanted, lease=lease, left_seconds=left_seconds)


def _follow(home: Home, ledger: Ledger, name: str, wanted: SuiteSpec, lease: LeaseKeeper, left_seconds: float) -> None:
    """Evaluates until the run is left, or `lease` is lost, which raises `FencedError`."""
    from yatt_core.errors import DataError

    done: set[str] = set()
    driven_at = time.monotonic()
    while True:
        lease.check()
        rows = [row for row in _committed(ledger, name) if row.folder not in done]
        for row in rows:
            done.add(row.folder)
            try:
                with open_for(home, name, row.iteration, wanted) as opened:
                    evaluated_once(home, opened)
            except DataError as error:
                if ledger.records.is_kept(row):
                    raise
                message(f"{name}: iteration {row.iteration} was pruned before it was evaluated: {error}")
        if _is_driven(ledger, name):
            driven_at = time.monotonic()
        elif not rows and time.monotonic() - driven_at >= left_seconds:
            return
        time.sleep(0.0 if rows else min(POLL_SECONDS, left_seconds))


def _committed(ledger: Ledger, run: str) -> list[CheckpointRow]:
    """Returns the kept checkpoints of committed iterations of the current line, oldest first."""
    rows = ledger.records.checkpoints(run)
    return sorted((row for row in rows if ledger.commits.at(run, row.iteration)), key=lambda row: row.iteration)


def _is_driven(ledger: Ledger, run: str) -> bool:
    from ops.queries.run_list import DRIVEN, find_line

    return find_line(ledger, run).driver == DRIVEN
