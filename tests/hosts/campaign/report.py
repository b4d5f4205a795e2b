"""What a campaign prints: one JSON object; docs/testing.md explains its keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from db.ledger import Ledger
from flows.run.results import run_results
from tests.flows.tools import same_result
from tests.hosts.campaign.strikes import Record
from tests.recovery.chaos import quantile
from tests.recovery.ledger_watch import Attempt, LedgerWatch

SOUND = ("digests_equal", "audit_chain_sound", "files_sound")


def figures(ledger: str, watch: LedgerWatch, run: str, quiet: str, record: Record) -> dict[str, Any]:
    """Returns the keys that `make hosts` prints, from both runs' results and the record of the faults.

    run, quiet: the run that was struck, and the undisturbed one.
    """
    with Ledger.open(ledger) as opened:
        one = run_results(opened, run)
        other = run_results(opened, quiet)
        broken = opened.events.verify(run)
    counts = watch.commits()
    missing = [i for i in range(one.iteration + 1) if not any(iteration == i for _, iteration in counts)]
    return {
        "host_faults": len(record.faults),
        "by_kind": dict(sorted(Counter(str(fault.kind) for fault in record.faults).items())),
        "lost_iterations": record.lost + len(missing),
        "duplicate_iterations": sum(count - 1 for count in counts.values()),
        "digests_equal": int(same_result(one, other)),
        "recover_host_p50_s": quantile(record.recover_s, 0.5),
        "recover_host_p95_s": quantile(record.recover_s, 0.95),
        "audit_chain_sound": int(broken is None),
        "late_results": late_results(watch.attempts()),
        "late_drivers": dict(Counter(record.late_drivers)),
        "noticed": record.noticed,
        "stuck": record.stuck,
        "pauses_for_space": record.pauses_for_space,
        "unasked_exits": record.exits,
        "iterations": one.iteration,
    }


def late_results(attempts: Sequence[Attempt]) -> int:
    """Returns how many attempts a term's driver recorded as done after a newer term's had dispatched a phase."""
    begins: dict[int, int] = {}
    for attempt in attempts:
        begins[attempt.term] = min(attempt.dispatched, begins.get(attempt.term, attempt.dispatched))

    def is_late(one: Attempt) -> bool:
        return any(newer > one.term and begin < one.ended for newer, begin in begins.items())

    return sum(attempt.state == "DONE" and is_late(attempt) for attempt in attempts)


def holds(told: dict[str, Any]) -> bool:
    """Returns whether no fault did harm."""
    harm = ("lost_iterations", "duplicate_iterations", "late_results", "stuck", "unasked_exits")
    return all(told[key] for key in SOUND) and not any(told[key] for key in harm)
