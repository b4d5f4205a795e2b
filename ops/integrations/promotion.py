"""Promotes a checkpoint: gives it an alias in the ledger, records who, when and why, and updates MLflow's registry.

Consumes a run's id, an alias, and the name of the person; called by `yatt promote` and by the dashboard.
Produces an event and rows in the ledger, in a single transaction, and outbox rows, which the run's driver
delivers, or `deliver` if there is no driver. Refuses a checkpoint that is damaged, pruned, or not the one that
its iteration's commit names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.core.approval_rules import APPROVED
from db.core.errors import AliasRefused, LeaseHeld
from db.ledger import Ledger
from db.write.aliases import CHAMPION, AliasMove, CheckpointKey
from db.write.approvals import ApprovalDecision
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from flows.delivery.registry import moved_entries, registered_model
from flows.run.home import Home
from ops.people.roles import Person, held_roles
from yatt_core.errors import ConfigurationError
from yatt_core.printable import printable

LONGEST_NAME = 200
LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True)
class Promotion:
    """The result of a promotion.

    moves: the moves in order; empty if the alias already pointed there.
    model: MLflow's address of the alias; None if the run is not tracked.
    approval: number of the approval that the promotion waits for; None if it waits for none.
    """

    run: str
    alias: str
    branch: int
    iteration: int
    weights_digest: str
    model: str | None
    moves: tuple[AliasMove, ...]
    approval: int | None = None


def promote(
    home: Home,
    run: str,
    alias: str,
    iteration: int | None = None,
    branch: int | None = None,
    term: int | None = None,
    *,
    by: str,
    why: str,
    via: str = "cli",
    person: Person | None = None,
) -> Promotion:
    """Points an alias of a run to a kept checkpoint of its current line: the newest that matches the given numbers.

    If the spec has a gate before the champion and the person may not decide it, people are asked instead.

    by: the person who decided it.
    why: the reason.
    via: cli or api.
    person: who is known to act; decides at a gate before the champion, in their own name. None: `by` decides, without roles.

    Raises `RunNotFound`; `ConfigurationError` for a checkpoint that cannot be promoted; `DataError` for one
    that no tier holds completely. In these cases, nothing is written.
    """
    from flows.files.storage import verify_beside_driver
    from flows.gates.promotions import champion_by_gate
    from flows.run.creation import current_spec, first_entries

    by = _said("by", by, LONGEST_NAME)
    why = _said("why", why, LONGEST_REASON)
    with Ledger.open(home.ledger, migrate=False) as ledger:
        run = ledger.runs.find(run).id
        row = _choose(ledger=ledger, run=run, iteration=iteration, branch=branch, term=term)
        # Checks the files first, because that takes long, and the ledger must not be locked meanwhile.
        verify_beside_driver(ledger, home.run_folder(run), row)
        spec = current_spec(ledger, run)

        def tell(moves: Sequence[AliasMove]) -> list[OutboxEntry]:
            # A run that has not been driven since tracking was enabled must be created in the tracker first.
            entries = moved_entries(spec, moves)
            return [*first_entries(run, spec), *entries] if entries else []

        target = CheckpointKey(row.branch, row.iteration, row.term)
        approval = None
        if alias == CHAMPION and spec.gates.promotion is not None:
            moves, approval = champion_by_gate(
                ledger=ledger, spec=spec, run=run, row=row, verdict=_verdict(by, why, via, person)
            )
        else:
            try:
                moves = ledger.aliases.promote(run=run, alias=alias, target=target, by=by, why=why, tell=tell)
            except AliasRefused as error:
                raise ConfigurationError(str(error)) from error
    model = f"models:/{registered_model(spec.name)}@{alias}" if spec.tracking.enabled else None
    return Promotion(
        run=run,
        alias=alias,
        branch=row.branch,
        iteration=row.iteration,
        weights_digest=row.weights_digest,
        model=model,
        moves=tuple(moves),
        approval=approval,
    )


def _verdict(by: str, why: str, via: str, person: Person | None) -> ApprovalDecision:
    """Returns the decision at the gate. Raises `ConfigurationError` for the name of another person than who is signed in."""
    if person is None:
        return ApprovalDecision(APPROVED, by, why, via)
    if by != person.name:
        raise ConfigurationError(f"by {by!r}: a gate precedes the champion, so {person.name} decides in their own name")
    return ApprovalDecision(decision=APPROVED, by=by, why=why, via=via, roles=held_roles(person.role))


def deliver(home: Home, run: str) -> str | None:
    """Delivers a run's pending outbox rows to MLflow, unless a driver holds the run.

    Returns why rows are still pending; None if none are. Pending rows are delivered by the run's driver, by its
    next resume, or by the service group.
    """
    from flows.delivery.outbox import deliver_pending, in_words
    from flows.run.lease import operator_lease
    from ops.integrations.mlflow_tracker import MlflowTracker

    tracker = MlflowTracker(home.tracking_uri, home.artifacts)
    with Ledger.open(home.ledger, migrate=False) as ledger:
        try:
            # Checked again after the lease is released: another process may have found the lease taken, and then
            # relies on this one to deliver its rows.
            while ledger.outbox.counts(run)[0]:
                with operator_lease(ledger, run, f"yatt promote of {run}") as lease:
                    fence = lease.fence
                    while deliver_pending(ledger, fence, tracker):
                        pass
        except LeaseHeld as error:
            return f"{error.holder} holds the run and delivers the rows"
        except Exception as error:  # noqa: BLE001  # any: the promotion is recorded, and others deliver it
            return in_words(error)
    return None


def _said(name: str, text: str, longest: int) -> str:
    """Returns a name or reason in the form in which it is recorded. Raises `ConfigurationError` if it is not valid."""
    stripped = text.strip()
    if not stripped or len(stripped) > longest or printable(stripped) != stripped:
        found = f"{len(stripped)} characters" if len(stripped) > longest else repr(stripped)
        raise ConfigurationError(f"{name}: expected 1 to {longest} characters of plain text, not {found}")
    return stripped


def _choose(ledger: Ledger, run: str, iteration: int | None, branch: int | None, term: int | None) -> CheckpointRow:
    """Returns the kept checkpoint that matches the given numbers.

    Raises `ConfigurationError`, listing the available iterations, if there is none or it cannot be promoted.
    """

    def is_meant(row: CheckpointRow) -> bool:
        return row.is_meant(iteration, branch, term)

    rows = ledger.records.checkpoints(run)
    usable = [row for row in rows if _obstacle(ledger, run, row) is None]
    for row in filter(is_meant, usable):
        return row
    numbers = (("iteration", iteration), ("branch", branch), ("term", term))
    asked = [f"{name} {number}" for name, number in numbers if number is not None]
    if not asked:
        raise ConfigurationError(f"run {run} has no checkpoint of a committed iteration yet")
    there = ", ".join(str(number) for number in sorted({row.iteration for row in usable})) or "none"
    meant = "the checkpoint of " + ", ".join(asked)
    named = next(filter(is_meant, rows), None)
    if named is not None:
        raise ConfigurationError(
            f"run {run}: {meant} cannot be promoted: {_obstacle(ledger, run, named)}; available iterations: {there}"
        )
    pruned = any(map(is_meant, ledger.records.checkpoints(run, state="pruned")))
    found = "is pruned" if pruned else "does not exist on its current line"
    raise ConfigurationError(f"run {run}: {meant} {found}; available iterations: {there}")


def _obstacle(ledger: Ledger, run: str, row: CheckpointRow) -> str | None:
    """Returns why a checkpoint does not contain the result of its iteration; None if it does."""
    from flows.driver.checkpoints import other_weights

    commit = ledger.commits.at(run, row.iteration)
    return "its iteration is not committed yet" if commit is None else other_weights(commit, row)
