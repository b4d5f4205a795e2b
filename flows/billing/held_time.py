"""When a run held devices, and the billing records of that time; from these, what it was charged in total.

Consumes leases, sessions and records in the ledger. Devices are held from the taking of a lease to the session's end or,
after a lost driver, to its last renewal. Reads no attempts, so it costs the same however long the run is.
"""

from __future__ import annotations

from collections.abc import Sequence

from db.ledger import Ledger
from db.read.history import DriverSessionTimes, RunHistory
from flows.run.session_times import SessionSpan, session_spans
from yatt_core.costs.billing import BILLING, UNRECORDED, BillingRecord, HeldDevices
from yatt_core.costs.charging import Amounts, ChargeKey, HeldInterval, charge
from yatt_core.costs.prices import UNKNOWN
from yatt_core.spec import parse_spec


def held_spans(ledger: Ledger, run: str) -> list[SessionSpan]:
    """Returns the spans in which the run held devices, in order, without overlaps. Raises `RunNotFound`."""
    leases = ledger.overview.leases(run)
    rows = ledger.overview.sessions(run)
    sessions = tuple(DriverSessionTimes(row.term, row.started_at, row.ended_at, row.outcome) for row in rows)
    return session_spans(RunHistory(run=run, line=(), sessions=sessions, leases=leases, attempts=(), sealed=()))


def records_of(ledger: Ledger, run: str, since: int | None) -> list[BillingRecord]:
    """Returns a run's billing records, in order.

    since: when the run first held devices; time before the first record has the devices of the spec and no price.
    """
    recorded = [BillingRecord.of(link.body) for link in ledger.events.of_kind(run, BILLING)]
    if since is None or (recorded and recorded[0].since <= since):
        return recorded
    return [*_unrecorded(ledger, run, recorded[0].since if recorded else None), *recorded]


def _unrecorded(ledger: Ledger, run: str, until: int | None) -> list[BillingRecord]:
    """Returns what stands for the records of drivers that wrote none: the number of devices of each revision."""
    found = []
    for number in range(1, ledger.runs.revision(run).revision + 1):
        revision = ledger.runs.revision(run, number)
        if until is None or number == 1 or revision.created_at < until:
            spec = parse_spec(dict(revision.spec), f"revision {number} of the spec of run {run}")
            billing = spec.billing
            devices = {UNRECORDED: HeldDevices(spec.devices, UNKNOWN)}
            since = 0 if number == 1 else revision.created_at
            found.append(
                BillingRecord(
                    since=since, project=billing.project or "", owner=billing.owner or "", currency="", devices=devices
                )
            )
    return found


def total_charges(ledger: Ledger, run: str, since: int | None = None) -> dict[ChargeKey, Amounts]:
    """Returns what a run was charged, without causes and phases. Raises `RunNotFound`.

    since: only from this time on, in milliseconds since 1970.
    """
    spans = held_spans(ledger, run)
    records = records_of(ledger, run, spans[0].start if spans else None)
    return charge(run, whole_spans(spans), records, since)


def whole_spans(spans: Sequence[SessionSpan]) -> list[HeldInterval]:
    """Returns a piece for each span."""
    return [HeldInterval(span.start, span.end, "", "") for span in spans]
