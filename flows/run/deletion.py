"""Deletes a run, for commands and the dashboard: its rows, its files and its MLflow runs.

Consumes the id of a run that nobody drives. A run has begun once it has committed an iteration, published a checkpoint
(which supervised fine-tuning does before the first commit), or promoted one; such a run is deleted only if the caller says
so, who then has looked for what depends on it (`flows.disposal.dependents`). Produces the ledger's record of the deletion, which
stays (`db.write.deletions`).

The ledger comes first: with its transaction the run is gone, as a whole, for everybody. The folder, the objects of the
durable tier and the MLflow runs follow. A kill in between leaves files without a run and a record that says so;
calling `delete_run` again removes them. The other order could leave a run without its files. What other trackers keep
outside the folder is named, not removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from db.core.errors import DeletionRefused, LeaseHeld, LedgerError
from db.ledger import Ledger
from db.write.deletions import DeletedRow
from flows.run.home import Home
from flows.run.lease import LIFE_SECONDS, refusal_of_lease, renewed, take_lease
from flows.run.lending import leave_kept
from flows.run.owner import owner_of
from flows.run.protocols import OutboxItem, Tracker
from flows.run.shared_cluster import end_services
from yatt_core import durable
from yatt_core.errors import ConfigurationError, YattError
from yatt_core.logs import redact
from yatt_core.storage.run_store import store_at
from yatt_core.tracker_kinds import TRACKER_KINDS

"""Lifetime of the lease; on the same host, the lease of a dead process can be taken over at once."""
DELETED = "deleted"
"""Kind of the tracker's row that marks a run's tracking runs as deleted."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted run.

    at: milliseconds since 1970.
    left: what could not be removed yet, and why; empty if nothing is left.
    elsewhere: what YATT cannot remove, since it belongs to others: runs on W&B's servers, and event files outside the run's
        folder.
    """

    run: str
    by: str
    why: str
    at: int
    left: tuple[str, ...]
    elsewhere: tuple[str, ...]


def require_deletable(ledger: Ledger, run: str, begun: bool = False) -> None:
    """Raises `ConfigurationError` if a run has begun or is held; does nothing if it is deleted already.

    begun: whether it may have begun.

    Raises `RunNotFound`.
    """
    if ledger.deletions.find(run) is not None:
        return
    obstacle = ledger.deletions.obstacle(ledger.runs.find(run).id, begun)
    if obstacle is not None:
        raise ConfigurationError(_refusal(run, obstacle, begun))
    require_undriven(ledger, run, begun)


def require_undriven(ledger: Ledger, run: str, begun: bool = False) -> None:
    """Raises `ConfigurationError` if a run is held by a living process other than a keeper. begun: as for `delete_run`."""
    held = refusal_of_lease(ledger, run)
    if held is not None:
        raise ConfigurationError(_refusal(run, _held_by(run, held.holder), begun))


def delete_run(home: Home, run: str, by: str, why: str, tracker: Tracker, begun: bool = False) -> Deleted:
    """Deletes a run, or finishes its deletion.

    by: the person who deletes it.
    why: the reason; may be empty.
    begun: whether it may have begun. The last link of its audit chain then says what was removed.

    Raises `ConfigurationError` if the run has begun although it must not, has a fork, or is held, `RunNotFound`, and
    `InfrastructureError` if its services cannot be stopped; in these cases, it is unchanged.
    """
    with Ledger.open(home.ledger, migrate=False) as ledger:
        row = ledger.deletions.find(run) or _delete_rows(home=home, ledger=ledger, run=run, by=by, why=why, begun=begun)
        left = () if row.cleaned_at is not None else tuple(_clean(home, row, tracker))
        if not left:
            ledger.deletions.cleaned(run)
    return Deleted(run=row.run, by=row.by, why=row.why, at=row.deleted_at, left=left, elsewhere=tuple(_elsewhere(row)))


def _delete_rows(home: Home, ledger: Ledger, run: str, by: str, why: str, begun: bool) -> DeletedRow:
    require_deletable(ledger, run, begun)
    try:
        fence = take_lease(ledger, run, f"yatt rm of {run}", LIFE_SECONDS)
    except LeaseHeld as error:
        raise ConfigurationError(_refusal(run, _held_by(run, error.holder), begun)) from error
    try:
        with renewed(ledger, fence):
            # A killed driver leaves its services behind, and they would go on writing to the folder.
            leave_kept(home, run)
            end_services(home.run_folder(run), fence.term)
            removed = _work_of(ledger, run) if begun else None
        return ledger.deletions.delete(
            fence=fence, by=by, why=why, outside={"owner": owner_of(ledger, run)}, removed=removed
        )
    except BaseException as error:
        with suppress(LedgerError):  # the ledger may be gone; the lease of an ended process can be taken over
            ledger.leases.release(fence)
        if isinstance(error, DeletionRefused):
            raise ConfigurationError(_refusal(run, str(error), begun)) from error
        raise


def _work_of(ledger: Ledger, run: str) -> dict[str, Any]:
    """Returns what a deletion removes: the last iteration and its weights, kept checkpoints with their bytes, aliases."""
    row = ledger.runs.find(run)
    kept = ledger.records.own_checkpoints(run, "kept")
    newest = ledger.commits.latest(run)
    return {
        "iteration": row.iteration,
        "state": row.state,
        "weights_digest": None if newest is None else newest.weights_digest,
        "checkpoints": [checkpoint.iteration for checkpoint in kept],
        "checkpoint_bytes": sum(checkpoint.bytes for checkpoint in kept),
        "aliases": sorted(ledger.aliases.pointing(run)),
    }


def _clean(home: Home, row: DeletedRow, tracker: Tracker) -> Iterator[str]:
    """Removes what a deleted run has outside the ledger; yields what could not be removed, and why."""
    folder = home.run_folder(row.run)
    owner = row.outside["owner"]

    def tell_tracker() -> None:
        if row.outside["experiments"]:
            body = {"owner": owner, "experiments": row.outside["experiments"]}
            tracker.deliver(
                [
                    OutboxItem(
                        key=f"{row.run}/{DELETED}",
                        run=row.run,
                        kind=DELETED,
                        body=body,
                        at_ms=row.deleted_at,
                        tracking_run=None,
                    )
                ]
            )

    steps: dict[str, Callable[[], object]] = {
        "its folder": lambda: durable.remove_whole_folder(folder),
        "its objects": lambda: store_at(row.spec.get("storage", {}).get("url"), folder).remove_all(owner),
        "its MLflow runs": tell_tracker,
    }
    for what, remove in steps.items():
        try:
            remove()
        except YattError as error:
            yield redact(f"{what}: {error}")


def _elsewhere(row: DeletedRow) -> Iterator[str]:
    """Yields what a deleted run has in trackers other than MLflow, outside its folder."""
    tracking = row.spec.get("tracking", {})
    for tracked in row.outside["tracked"]:
        left = TRACKER_KINDS[tracked["tracker"]].left_elsewhere(tracking, tracked["name"])
        if left is not None:
            yield left


def _refusal(run: str, why: str, begun: bool) -> str:
    only = (
        "Only a run that nobody drives or depends on can be deleted"
        if begun
        else "Only a run that never began and that nobody drives can be deleted here; `yatt delete` deletes one that has begun"
    )
    return f"run {run} cannot be deleted: {why}. {only}"


def _held_by(run: str, holder: str) -> str:
    return f"it is held by {holder}; to stop it: `yatt stop {run} --wait`"
