"""The paged list of all runs, and the line of a single run.

Consumes the ledger; produces `RunList` and `ListedRun`. Times are in seconds, except fields ending in `_at`, which are
milliseconds since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.read.overview import RunLine
from db.read.run_list import RunListLine
from db.write.runs import DRIVEN_STATES
from flows.run.lease import is_keeper
from ops.presentation.columns import (
    AgeCell,
    BadgeCell,
    Cell,
    Column,
    Columns,
    DurationCell,
    Medium,
    NoteCell,
    ProgressCell,
    RunCell,
    StateCell,
)
from ops.presentation.words import cut

DRIVEN = "driven"
LOST = "lost"
NOBODY = "nobody"
COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """The summary of a run.

    progress: completed fraction of the target.
    driver: as `driver_of` says.
    holder: who holds the lease, or let it expire; None if the lease was released.
    reward: mean reward at the newest commit.
    accuracy: held-out accuracy at the newest evaluation.
    eta_seconds: time to the target at the pace of the newest iterations; None without a driver or a known pace.
    event_seq: number of the audit chain's last event.
    """

    id: str
    spec_name: str
    state: str
    state_reason: str
    desired_state: str
    iteration: int
    target_iterations: int
    progress: float
    branch: int
    created_at: int
    committed_at: int | None
    last_commit_age: float | None
    driver: str
    holder: str | None
    term: int
    lease_expires_in: float
    reward: float | None
    accuracy: float | None
    iteration_seconds: float | None
    eta_seconds: float | None
    event_seq: int

    @property
    def finished(self) -> bool:
        """True as `is_finished` says."""
        return is_finished(self.state, self.driver)


def is_finished(state: str, driver: str) -> bool:
    """Returns True if a run has reached its target and nobody drives it; it changes only if somebody extends it."""
    return state == COMPLETED and driver == NOBODY


@dataclass(frozen=True, slots=True)
class RunList:
    """A page of matching runs.

    total: number of all matching runs.
    states: number of runs in the whole ledger by state.
    tags: the tags of the runs on this page, by run.
    all_tags: number of runs in the whole ledger by tag.
    """

    total: int
    limit: int
    offset: int
    states: Mapping[str, int]
    tags: Mapping[str, tuple[str, ...]]
    all_tags: Mapping[str, int]
    runs: tuple[ListedRun, ...]


def run_list(
    ledger: Ledger,
    text: str = "",
    state: str | None = None,
    limit: int = 50,
    offset: int = 0,
    tags: Sequence[str] = (),
) -> RunList:
    """Returns the runs in the given state, with all tags, whose id contains the text: running first, then newest."""
    page = ledger.run_list.page(text=text, state=state, limit=limit, offset=offset, tags=tags)
    runs = tuple(listed_run(line) for line in page.lines)
    found = ledger.annotations.tags([run.id for run in runs])
    return RunList(
        total=page.total,
        limit=limit,
        offset=offset,
        states=page.states,
        tags=found,
        all_tags=ledger.annotations.all_tags(),
        runs=runs,
    )


def find_line(ledger: Ledger, run: str) -> ListedRun:
    """Returns one run, by its full id. Raises `RunNotFound`."""
    line = ledger.run_list.line(run)
    if line is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return listed_run(line)


def driver_of(line: RunLine) -> str:
    """Returns `driven`, `lost` or `nobody`.

    A driver is lost if its lease expired, or if the run is still running or waiting although nobody holds the lease: the keeper
    takes and releases the lease of a lost driver.
    """
    held = line.holder is not None and not is_keeper(line.holder)
    if held and line.lease_expires_in > 0:
        return DRIVEN
    return LOST if held or line.run.state in DRIVEN_STATES else NOBODY


def listed_run(found: RunListLine) -> ListedRun:
    """Converts a line of the ledger for display."""
    line = found.line
    run = found.line.run
    driver = driver_of(line)
    target = run.target_iterations
    done = max(0, run.iteration)
    left = max(0, target - done)
    pace = found.iteration_seconds
    return ListedRun(
        id=run.id,
        spec_name=run.spec_name,
        state=run.state,
        state_reason=run.state_reason,
        desired_state=run.desired_state,
        iteration=run.iteration,
        target_iterations=target,
        progress=min(1.0, done / target) if target else 1.0,
        branch=run.current_branch,
        created_at=run.created_at,
        committed_at=run.committed_at,
        last_commit_age=line.last_commit_age,
        driver=driver,
        holder=line.holder,
        term=line.term,
        lease_expires_in=line.lease_expires_in,
        reward=found.reward,
        accuracy=found.accuracy,
        iteration_seconds=pace,
        eta_seconds=left * pace if driver == DRIVEN and pace is not None else None,
        event_seq=found.event_seq,
    )


REASON_CHARACTERS = 120
SHORT_REASON_CHARACTERS = 60
DRIVER_CHARACTERS = 40


def _state(run: ListedRun) -> Cell:
    return f"{run.state}, driver lost" if run.driver == LOST and run.state in DRIVEN_STATES else run.state


def _explained_state(run: ListedRun) -> Cell:
    return NoteCell(StateCell(run.state), cut(run.state_reason, SHORT_REASON_CHARACTERS))


def _iteration(run: ListedRun) -> str:
    return f"{max(0, run.iteration)}/{run.target_iterations}"


def _progress(run: ListedRun) -> Cell:
    return ProgressCell(_iteration(run), run.progress, f"Progress of {run.id}")


def _driver(run: ListedRun) -> Cell:
    if run.driver == LOST:
        return BadgeCell("lost", "bad")
    return "none" if run.driver == NOBODY else run.holder or ""


RUNS: Columns[ListedRun] = (
    Column("run", lambda run: RunCell(run.id), heads=True, style="break", medium=Medium.TERMINAL),
    Column("state", _state, medium=Medium.TERMINAL),
    Column("state", _explained_state, medium=Medium.PAGE),
    Column("iteration", _iteration, number=True, medium=Medium.TERMINAL),
    Column("iteration", _progress, medium=Medium.PAGE),
    Column("%", lambda run: round(100 * run.progress), number=True, medium=Medium.TERMINAL),
    Column("reward", lambda run: run.reward, number=True),
    Column("accuracy", lambda run: run.accuracy, number=True),
    Column("time per iteration", lambda run: DurationCell(run.iteration_seconds), number=True, medium=Medium.PAGE),
    Column("remaining", lambda run: DurationCell(run.eta_seconds), number=True, medium=Medium.PAGE),
    Column("last commit", lambda run: AgeCell(run.last_commit_age), style="nowrap"),
    Column("age", lambda run: AgeCell(time.time() - run.created_at / 1000), medium=Medium.TERMINAL),
    Column("driver", lambda run: cut(run.holder or "", DRIVER_CHARACTERS), medium=Medium.TERMINAL),
    Column("driver", _driver, style="break", medium=Medium.PAGE),
    Column("reason", lambda run: cut(run.state_reason, REASON_CHARACTERS), wraps=True, medium=Medium.TERMINAL),
)
"""A page's first column, a run with its tags and the box that ticks it, is in its template."""
