"""The checkpoints of a run, with the result of each one's newest verification.

Consumes the ledger's rows and the events of kind `checkpoint_verified` in the audit chain; produces `Checkpoints`. Verifying
reads every byte of a checkpoint, so it is done only on request (`ops.dashboard.actions`).
"""

from __future__ import annotations

from dataclasses import dataclass

from db.ledger import Ledger
from db.write.aliases import AliasMove
from db.write.checkpoint_requests import CheckpointRequest
from db.write.records import CheckpointRow
from db.write.waits import WaitRow
from flows.files.storage import verify_beside_driver
from flows.run.home import Home
from ops.presentation.checkpoint_words import checkpoint_words
from ops.presentation.columns import (
    Column,
    Columns,
    DigestCell,
    Medium,
    MomentCell,
    SizeCell,
    StateCell,
)
from ops.queries.run_list import DRIVEN, find_line
from yatt_core.errors import ConfigurationError, DataError

VERIFIED = "checkpoint_verified"
REMEMBERED = 500
"""Maximum number of verifications searched, newest first."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    at: milliseconds since 1970.
    by: who requested it.
    damage: empty for a sound checkpoint.
    """

    at: int
    by: str
    sound: bool
    damage: str


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint, its newest verification, and the aliases that point to it."""

    checkpoint: CheckpointRow
    verification: Verification | None
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints of a run, newest iteration first.

    next: the value of `before` for the next page; None on the last page.
    """

    run: str
    checkpoints: tuple[CheckpointView, ...]
    next: str | None


def checkpoints(ledger: Ledger, run: str, limit: int = 100, before: str | None = None) -> Checkpoints:
    """Returns a run's own checkpoints, on all branches. Raises `RunNotFound`, `ConfigurationError` (bad `before`)."""
    find_line(ledger, run)
    rows = ledger.browse.checkpoints(run, limit, None if before is None else _place(before))
    found: dict[tuple[int, int, int], Verification] = {}
    for link in ledger.browse.events(run, REMEMBERED, kinds=(VERIFIED,)):
        body = link.body
        known = Verification(link.at, body["by"], body["sound"], body["damage"])
        found.setdefault((body["iteration"], body["branch"], body["term"]), known)
    pointing = ledger.aliases.pointing(run)
    views = tuple(
        CheckpointView(
            checkpoint=row,
            verification=found.get((row.iteration, row.branch, row.term)),
            aliases=tuple(alias for alias, key in pointing.items() if key == (row.branch, row.iteration, row.term)),
        )
        for row in rows
    )
    last = f"{rows[-1].iteration}.{rows[-1].branch}.{rows[-1].term}" if len(rows) == limit else None
    return Checkpoints(run, views, last)


@dataclass(frozen=True, slots=True)
class AliasesView:
    """The checkpoints that a run's aliases point to, and its newest promotions, newest first."""

    run: str
    current: tuple[AliasMove, ...]
    history: tuple[AliasMove, ...]


def aliases(ledger: Ledger, run: str, limit: int = 100) -> AliasesView:
    """Returns the aliases of a run and its promotions: who, when and why. Raises `RunNotFound`."""
    find_line(ledger, run)
    moves = ledger.aliases.history(run)
    return AliasesView(run, tuple(ledger.aliases.current(run).values()), tuple(reversed(moves[-limit:])))


def verify(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int,
    by: str,
    branch: int | None = None,
    term: int | None = None,
) -> tuple[CheckpointRow, Verification]:
    """Reads every byte of an iteration's kept checkpoint, and records the result and requester in the audit chain.

    A checkpoint is damaged if no storage tier has it intact. Raises `RunNotFound`; `ConfigurationError` if no checkpoint of the
    iteration is kept, or if it is pruned meanwhile; `InfrastructureError` if the object store is unreachable. In these cases
    nothing is recorded.
    """
    find_line(ledger, run)
    row = kept(ledger=ledger, run=run, iteration=iteration, branch=branch, term=term)
    try:
        verify_beside_driver(ledger, home.run_folder(run), row)
        damage = ""
    except DataError as error:
        damage = str(error)
    body = {
        "branch": row.branch,
        "iteration": row.iteration,
        "term": row.term,
        "manifest_sha256": row.manifest_sha256,
        "sound": not damage,
        "damage": damage,
        "by": by,
    }
    link = ledger.events.append(run, VERIFIED, body)
    return row, Verification(link.at, by, not damage, damage)


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A request for a checkpoint, and what the run does meanwhile.

    last_commit: -1 before the first.
    newest: iteration of the newest checkpoint that is kept; None if there is none.
    wait: what the run waits for; None if it goes on.
    """

    request: CheckpointRequest
    last_commit: int
    newest: int | None
    wait: WaitRow | None

    def words(self, now: float) -> str:
        """Returns in a line what becomes of the request. now: seconds since 1970."""
        return checkpoint_words(
            run=self.request.run, wait=self.wait, newest=self.newest, last_commit=self.last_commit, now=now
        )


def request(ledger: Ledger, run: str, reason: str, by: str) -> CheckpointAsked:
    """Asks the run's driver for a checkpoint after its current iteration; returns the request that is pending.

    Raises `RunNotFound`; `ConfigurationError` if nobody drives the run, since then nobody can take it.
    """
    line = find_line(ledger, run)
    if line.driver != DRIVEN:
        raise ConfigurationError(
            f"run {run}: it is {line.state} and has no driver, so nobody can take a checkpoint; "
            f"`yatt resume {run}` continues it"
        )
    asked = ledger.checkpoint_requests.ask(run, reason, by)
    newest = next(iter(ledger.records.checkpoints(run)), None)
    return CheckpointAsked(
        request=asked,
        last_commit=line.iteration,
        newest=None if newest is None else newest.iteration,
        wait=ledger.waits.of([run]).get(run),
    )


def kept(ledger: Ledger, run: str, iteration: int, branch: int | None = None, term: int | None = None) -> CheckpointRow:
    """Returns an iteration's newest kept checkpoint, for a branch and term if given. Raises `ConfigurationError`."""
    for row in ledger.records.own_checkpoints(run, "kept"):
        if row.is_meant(iteration, branch, term):
            return row
    place = "".join(f", {name} {at}" for name, at in (("branch", branch), ("term", term)) if at is not None)
    raise ConfigurationError(f"run {run}: no checkpoint is kept for iteration {iteration}{place}")


def _place(text: str) -> tuple[int, int, int]:
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigurationError(f"before={text!r:.60}: expected the previous page's `next`")
    iteration, branch, term = map(int, parts)
    return iteration, branch, term


CHECKPOINTS: Columns[CheckpointRow] = (
    Column("iteration", lambda row: str(row.iteration), number=True),
    Column("state", lambda row: StateCell(row.state)),
    Column("weights", lambda row: DigestCell(row.weights_digest)),
    Column("size", lambda row: SizeCell(row.bytes), number=True),
    Column("taken", lambda row: MomentCell(row.recorded_at), style="nowrap"),
    Column("branch, term", lambda row: f"{row.branch}, {row.term}", style="wide"),
    Column("folder", lambda row: row.folder, medium=Medium.TERMINAL),
)
MOVES: Columns[AliasMove] = (
    Column("alias", lambda move: move.alias),
    Column("iteration", lambda move: str(move.iteration), number=True),
    Column("branch", lambda move: str(move.branch), number=True),
    Column("since", lambda move: MomentCell(move.at, seconds=True), style="nowrap"),
    Column("by", lambda move: move.by, style="break"),
    Column("why", lambda move: move.why, style="text"),
)
