"""The audit chain: changed, dropped, inserted and reordered links are detected."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete, update

from db.core.engine import Fence
from db.core.errors import LedgerError, RunNotFound
from db.core.models import Event, RunTable
from db.ledger import Ledger
from tests.db.tools import commit_through


def test_drivers_and_operators_write_one_chain(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(2))
    ledger.events.append(run, "note", {"who": "ops", "ß": [1, 2.5, None, (3,)]})
    ledger.runs.ask_to_stop(run, "maintenance")
    ledger.runs.ask_to_stop(run, "asked twice, an event once")
    ledger.runs.set_state(fence, "stopped", "asked to")
    ledger.leases.release(fence)
    links = ledger.events.links(run)
    assert [link.seq for link in links] == list(range(1, len(links) + 1))
    assert [link.kind for link in links] == [
        "spec_revision",
        "lease_taken",
        "commit",
        "commit",
        "note",
        "desired_state",
        "state",
        "lease_released",
    ]
    assert all(later.prev_hash == earlier.hash for earlier, later in itertools.pairwise(links))
    assert ledger.events.head(run).hash == links[-1].hash
    assert ledger.events.verify(run) is None


TAMPERINGS: dict[str, tuple[Callable[[Connection], object], int]] = {
    "body": (lambda c: c.execute(update(Event).where(Event.seq == 3).values(body={"iteration": 7})), 3),
    "kind": (lambda c: c.execute(update(Event).where(Event.seq == 3).values(kind="note")), 3),
    "time": (lambda c: c.execute(update(Event).where(Event.seq == 3).values(at=Event.at + 1)), 3),
    "hash": (lambda c: c.execute(update(Event).where(Event.seq == 3).values(hash="0" * 64)), 3),
    "dropped in the middle": (lambda c: c.execute(delete(Event).where(Event.seq == 3)), 3),
    "dropped at the end": (lambda c: c.execute(delete(Event).where(Event.seq == 5)), 5),
    "dropped at the start": (lambda c: c.execute(delete(Event).where(Event.seq < 3)), 1),
    "all dropped": (lambda c: c.execute(delete(Event)), 1),
    "head put back": (lambda c: c.execute(update(RunTable).values(event_seq=4)), 5),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampering_is_detected(ledger: Ledger, run: str, fence: Fence, tampering: str) -> None:
    commit_through(ledger, fence, range(3))
    assert ledger.events.verify(run) is None
    change, first_bad = TAMPERINGS[tampering]
    with ledger._database.write() as connection:
        change(connection)
    assert ledger.events.verify(run) == first_bad


def test_a_link_needs_a_run_and_a_json_body(ledger: Ledger, run: str) -> None:
    with pytest.raises(RunNotFound, match="toy-9"):
        ledger.events.append("toy-9", "note", {})
    with pytest.raises(RunNotFound, match="toy-9"):
        ledger.events.verify("toy-9")
    with pytest.raises(LedgerError, match="as JSON"):
        ledger.events.append(run, "note", {"loss": float("nan")})
    assert ledger.events.head(run).seq == 1


def test_links_of_a_kind_are_found_in_the_newest_runs(ledger: Ledger) -> None:
    runs = [ledger.runs.create("many", {}, "digest", 1).id for _ in range(3)]
    for number, run in enumerate(runs):
        ledger.events.append(run, "note", {"of": number})
        ledger.events.append(run, "other", {})
    found = ledger.events.of_newest_runs("note", 2)
    assert {(link.run, link.body["of"]) for link in found} == {(runs[1], 1), (runs[2], 2)}
    assert [link.at for link in found] == sorted((link.at for link in found), reverse=True)
