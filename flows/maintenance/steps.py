"""The steps of maintenance, each with what it does where no run does it by itself.

deletions   finishes deletions of runs of which something could not be removed
retention   deletes checkpoints, experience and partial files that idle runs no longer need; a driver does so for its own
audit       audits every run; a run in which something disagrees gets a link in its audit chain, once for each finding
backup      backs the home up and deletes the oldest backups, if `maintenance.yaml` names a folder
database    statistics and free space of the ledger
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from db.core.errors import LeaseHeld, LedgerError
from db.ledger import Ledger
from flows.backup.create import create_backup
from flows.backup.folder import BackupFolder
from flows.backup.prune import prune_backups
from flows.delivery.registry import pruned_entries
from flows.files.retention import has_unneeded_experience, needed_checkpoints, prune_experience
from flows.files.storage import store_of
from flows.maintenance.runner import MaintenanceError, Step
from flows.maintenance.settings import MaintenanceSettings
from flows.reports.audit import AuditReport, verify_run
from flows.run.creation import current_spec
from flows.run.deletion import delete_run
from flows.run.home import Home
from flows.run.lease import operator_lease
from flows.run.protocols import MetricsReader, Tracker
from yatt_core.checkpoints.retention import delete_checkpoint, sweep_checkpoints
from yatt_core.counting import many
from yatt_core.errors import YattError
from yatt_core.keys import CHECKPOINTS

log = logging.getLogger("yatt.maintenance")
UNSOUND = "audit_failed"
"""The kind of the link that records what an audit found."""
RUNNING = "running"
ReaderOf = Callable[[Ledger, str], MetricsReader | None]
"""Returns a reader of a run's metrics; None if it is not tracked."""


def steps_of(
    home: Home, settings: MaintenanceSettings, tracker: Tracker, reader_of: ReaderOf, files: Sequence[str]
) -> Mapping[str, Step]:
    """Returns the steps by name, in order.

    files: names of the files of the home folder that belong in a backup.
    """

    def opened(step: Callable[[Ledger], str]) -> Step:
        def run() -> str:
            with Ledger.open(home.ledger, migrate=False) as ledger:
                return step(ledger)

        return run

    steps = {
        "deletions": opened(lambda ledger: finish_deletions(home, ledger, tracker)),
        "retention": opened(lambda ledger: prune_idle(home, ledger)),
    }
    if settings.audit:
        steps["audit"] = opened(lambda ledger: audit_all(home, ledger, reader_of))
    if settings.backup is not None:
        folder = BackupFolder(settings.backup.to)
        keep = settings.backup.keep
        steps["backup"] = opened(
            lambda ledger: back_up(home=home, ledger=ledger, folder=folder, keep=keep, files=files)
        )
    return steps | {"database": opened(lambda ledger: ledger.upkeep.tidy(idle=not ledger.leases.holders()))}


def finish_deletions(home: Home, ledger: Ledger, tracker: Tracker) -> str:
    """Removes what is left of deleted runs."""
    left = [row for row in ledger.deletions.list() if row.cleaned_at is None]
    done = [delete_run(home=home, run=row.run, by=row.by, why=row.why, tracker=tracker) for row in left]
    if stuck := [f"{each.run}: {remains}" for each in done for remains in each.left]:
        raise MaintenanceError(f"could not be removed: {'; '.join(stuck)}")
    return f"{len(done)} finished"


def prune_idle(home: Home, ledger: Ledger) -> str:
    """Deletes what runs that nobody drives no longer need. Nothing of a run is touched without its lease.

    Raises `MaintenanceError` with the reason for each run of which something could not be deleted.
    """
    held = ledger.leases.holders()
    pruned = list[str]()
    found = list[str]()
    for run in (row.id for row in ledger.runs.list(limit=1_000_000) if row.id not in held and row.state != RUNNING):
        try:
            if _has_something(home, ledger, run):
                _prune(home, ledger, run)
                pruned.append(run)
        except LeaseHeld as error:
            log.info("%s: %s", run, error)
        except (YattError, LedgerError) as error:
            found.append(f"{run}: {error}")
    done = f"files of {', '.join(pruned)} deleted" if pruned else "nothing to delete"
    if found:
        raise MaintenanceError("; ".join([done, *found]))
    return done


def _has_something(home: Home, ledger: Ledger, run: str) -> bool:
    spec = current_spec(ledger, run)
    folder = home.run_folder(run)
    kept = {row.folder for row in ledger.records.own_checkpoints(run, "kept")}
    hidden = list((folder / CHECKPOINTS).glob(".*"))
    unneeded = kept - needed_checkpoints(ledger, run, spec.checkpoints.keep, spec.version_span)
    return bool(hidden or unneeded) or has_unneeded_experience(ledger, run, folder, spec)


def _prune(home: Home, ledger: Ledger, run: str) -> None:
    spec = current_spec(ledger, run)
    folder = home.run_folder(run)
    store = store_of(ledger, run, folder)
    with operator_lease(ledger, run, f"yatt maintenance of {run}", patience=0.0) as lease:
        needed = needed_checkpoints(ledger, run, spec.checkpoints.keep, spec.version_span)
        for row in ledger.records.own_checkpoints(run, "kept"):
            lease.check()
            if row.folder not in needed and ledger.records.checkpoint_pruned(
                lease.fence, row, pruned_entries(spec, row)
            ):
                delete_checkpoint(folder, row.folder)
                store.remove(row.folder)
        # Visible folders stay: one that no row names is a checkpoint that the next driver records.
        checkpoints = folder / CHECKPOINTS
        visible = [path.name for path in checkpoints.glob("[!.]*")]
        lease.check()
        sweep_checkpoints(folder, visible)
        prune_experience(ledger=ledger, fence=lease.fence, run_folder=folder, spec=spec, store=store)


def audit_all(home: Home, ledger: Ledger, reader_of: ReaderOf) -> str:
    """Audits every run. Raises `MaintenanceError` with the first disagreement of each run, or why it could not be audited."""
    runs = [row.id for row in ledger.runs.list(limit=1_000_000)]
    found = list[str]()
    for run in runs:
        try:
            report = verify_run(ledger, run, home.run_folder(run), reader_of(ledger, run))
        except (YattError, LedgerError) as error:
            found.append(f"{run}: could not be audited: {error}")
            continue
        if report.disagreement is not None:
            _record(ledger, report)
            said = report.disagreement
            found.append(f"{run}: {said.check}: {said.place}: expected {said.expected}, found {said.found}")
    if found:
        raise MaintenanceError("; ".join(found))
    return many(len(runs), "run", "are sound", "is sound")


def _record(ledger: Ledger, report: AuditReport) -> None:
    """Records a disagreement in the run's audit chain, unless the newest record says the same."""
    assert report.disagreement is not None, "the caller has found one"
    body = asdict(report.disagreement)
    before = ledger.events.of_kind(report.run, UNSOUND)
    if not before or before[-1].body != body:
        ledger.events.append(report.run, UNSOUND, body)


def back_up(home: Home, ledger: Ledger, folder: BackupFolder, keep: int, files: Sequence[str]) -> str:
    """Makes a backup and deletes the oldest ones. Raises `MaintenanceError` if the home lacks something."""
    made = create_backup(home, ledger, folder, files)
    pruned = prune_backups(folder, keep)
    done = f"{made.id} in {folder.folder}, {many(made.added, 'new byte')}; {many(len(pruned.deleted), 'older one')} deleted"
    if made.manifest.lacking:
        raise MaintenanceError(f"{done}; not in the backup: {'; '.join(made.manifest.lacking.values())}")
    return done
