"""Archives runs that have ended: what they are known by stays, and the files that nothing needs any more are deleted.

Consumes the id of a run that nobody drives. Produces the link `archived` in its audit chain, which says what was deleted. The
run can still be shown, audited, evaluated, exported, forked at what is kept, and resumed:

    kept       rows, metrics and the audit chain; the spec, code, inputs, logs, reports and exports; the newest checkpoint, that
               of iteration 0, those of aliases and of branches, those that a soup merges, that a pipeline under way has as
               results or that specs of other runs name, and the experience that a resumption replays
    deleted    other checkpoints, other experience with its prepared columns, the run's own Prefect database

Each deletion of checkpoints and experience is recorded before its files go, as retention does it, so that a kill in between
leaves nothing unexplained; a second call deletes what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from db.ledger import Ledger
from flows.delivery.registry import pruned_entries
from flows.disposal.dependents import checkpoints_of_others
from flows.disposal.usage import folder_bytes
from flows.files.retention import needed_checkpoints, prune_experience
from flows.files.storage import store_of
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.lease import operator_lease, refusal_of_lease
from flows.run.lending import leave_kept
from flows.run.shared_cluster import end_services
from yatt_core import durable
from yatt_core.checkpoints.retention import delete_checkpoint, sweep_checkpoints
from yatt_core.errors import ConfigurationError
from yatt_core.keys import CHECKPOINTS
from yatt_core.spec import RunSpec

ARCHIVED = "archived"
"""The kind of the link that records what was deleted."""
PREFECT = "prefect"
"""The folder of a run's own Prefect database."""
KEPT = 1
"""Number of newest checkpoints that an archived run keeps."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What was deleted of a run.

    checkpoints: the iterations whose checkpoints were deleted.
    experience: the iterations whose experience was deleted.
    freed: bytes on this disk; files that a fork shares are counted, although they stay.
    """

    run: str
    checkpoints: tuple[int, ...]
    experience: tuple[int, ...]
    freed: int


def require_archivable(ledger: Ledger, run: str) -> None:
    """Raises `ConfigurationError` if a run never began or is in the queue, `LeaseHeld` if it is driven, and `RunNotFound`."""
    row = ledger.runs.find(run)
    entry = ledger.queue.entry(run)
    if row.iteration < 0:
        raise ConfigurationError(f"run {run} has committed nothing that could be archived; `yatt rm {run}` deletes it")
    if entry is not None and entry.ended_at is None:
        raise ConfigurationError(f"run {run} is in the queue; `yatt queue remove {run}` takes it out")
    held = refusal_of_lease(ledger, run)
    if held is not None:
        raise held


def archive_run(home: Home, ledger: Ledger, run: str, by: str, why: str) -> Archived:
    """Deletes what an ended run no longer needs.

    by: the person who archives it.
    why: the reason; may be empty.

    Raises what `require_archivable` raises, and `InfrastructureError` if the run's services cannot be stopped or its files not
    be deleted.
    """
    require_archivable(ledger, run)
    folder = home.run_folder(run)
    with operator_lease(ledger, run, f"yatt archive of {run}") as lease:
        fence = lease.fence
        before = folder_bytes(folder)
        leave_kept(home, run)
        end_services(folder, fence.term)
        spec = _least(current_spec(ledger, run))
        store = store_of(ledger, run, folder)
        pruned = list[int]()
        own = ledger.records.own_checkpoints(run, "kept")
        kept = needed_checkpoints(ledger, run, KEPT, spec.version_span)
        needed = kept | checkpoints_of_others(home, ledger, run, own)
        for row in own:
            lease.check()
            if row.folder not in needed and ledger.records.checkpoint_pruned(fence, row, pruned_entries(spec, row)):
                delete_checkpoint(folder, row.folder)
                store.remove(row.folder)
                pruned.append(row.iteration)
        lease.check()
        sweep_checkpoints(folder, _visible(folder))
        experience = prune_experience(ledger=ledger, fence=fence, run_folder=folder, spec=spec, store=store)
        durable.remove_whole_folder(folder / PREFECT)
        done = Archived(run, tuple(pruned), tuple(experience), max(0, before - folder_bytes(folder)))
        body = {
            "by": by,
            "why": why,
            "checkpoints": list(done.checkpoints),
            "experience": len(done.experience),
            "freed": done.freed,
            "term": fence.term,
        }
        ledger.events.append(run, ARCHIVED, body, fence)
    return done


def _least(spec: RunSpec) -> RunSpec:
    """Returns the spec with the least retention, whatever the run's own is."""
    checkpoints = spec.checkpoints.model_copy(update={"keep": KEPT})
    retention = spec.retention.model_copy(update={"experience": "needed"})
    return spec.model_copy(update={"checkpoints": checkpoints, "retention": retention})


def _visible(folder: Path) -> list[str]:
    """Returns the names of complete checkpoints; one that no row names is a checkpoint that the next driver records."""
    return [path.name for path in (folder / CHECKPOINTS).glob("[!.]*")]
