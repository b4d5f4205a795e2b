"""Where a run's actors were, and when: on which node and device, with how much memory.

Consumes the links of the audit chain that record the actors' seats, and the sessions; produces `SeatSpan`s. An actor has
its seat from the record that first names it there until a record that no longer does, or until an orderly end of a
session, which ends the actors. Actors of a lost driver may go on with the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from db.ledger import Ledger
from db.write.events import EventRow
from db.write.lease import LOST
from yatt_core.protocols.receipts import ActorSeat

SEATS = "seats"
"""The kind of these links."""
RECORDS = 500
"""Maximum number of records that are read; the newest ones."""


@dataclass(frozen=True, slots=True)
class SeatSpan:
    """A time in which an actor had a seat. Times are milliseconds since 1970.

    until: None while it still has it.
    """

    seat: ActorSeat
    since: int
    until: int | None


def identity_of(seat: ActorSeat) -> tuple[str, str, str, str]:
    """Returns what distinguishes a seat from the actor's next one; memory does not."""
    return seat.actor, seat.id, seat.node, seat.device


def last_seats(ledger: Ledger, run: str) -> tuple[ActorSeat, ...] | None:
    """Returns the newest record; None if there is none."""
    links = ledger.browse.events(run, 1, kinds=(SEATS,))
    return _seats_in(links[0]) if links else None


def seat_spans(ledger: Ledger, run: str) -> tuple[SeatSpan, ...]:
    """Returns the spans of all actors, by their beginning and then as recorded."""
    links = ledger.browse.events(run, RECORDS, kinds=(SEATS,))[::-1]
    sessions = ledger.overview.sessions(run)
    ends = [each.ended_at for each in sessions if each.ended_at is not None and each.outcome != LOST]
    open_spans: dict[tuple[str, ...], SeatSpan] = {}
    closed: list[SeatSpan] = []
    for link in links:
        held = {identity_of(seat): seat for seat in _seats_in(link)}
        closed += _closed(open_spans, open_spans.keys() - held.keys(), link.at, ends)
        for key, seat in held.items():
            open_spans.setdefault(key, SeatSpan(seat, link.at, None))
    if sessions and sessions[-1].ended_at is not None:
        closed += _closed(open_spans, set(open_spans), sessions[-1].ended_at, ends)
    order = list(dict.fromkeys(identity_of(seat) for link in links for seat in _seats_in(link)))
    places = {key: place for place, key in enumerate(order)}
    return tuple(sorted((*closed, *open_spans.values()), key=lambda span: (span.since, places[identity_of(span.seat)])))


def seats_during(ledger: Ledger, run: str, branch: int, iteration: int) -> tuple[SeatSpan, ...]:
    """Returns the spans in which actors had a seat while an iteration was made, from its first attempt to its last."""
    attempts = ledger.phases.attempts(run, branch, iteration)
    if not attempts:
        return ()
    first = min(each.planned_at for each in attempts)
    last = max(each.ended_at or each.planned_at for each in attempts)
    spans = seat_spans(ledger, run)
    return tuple(span for span in spans if span.since <= last and (span.until is None or span.until > first))


def seat_table(spans: Sequence[SeatSpan]) -> dict[str, Any]:
    """Returns the spans as columns and rows for the trackers."""
    columns = [*(field.name for field in fields(ActorSeat)), "since_ms", "until_ms"]
    return {"columns": columns, "data": [[*asdict(span.seat).values(), span.since, span.until] for span in spans]}


def _closed(
    open_spans: dict[tuple[str, ...], SeatSpan], keys: set[tuple[str, ...]], at: int, ends: Sequence[int]
) -> list[SeatSpan]:
    """Removes and returns spans that have ended: with the first session that ended after they began, else at a time."""
    found = []
    for key in keys:
        span = open_spans.pop(key)
        ended = next((end for end in ends if end > span.since), at)
        found.append(SeatSpan(span.seat, span.since, min(at, ended)))
    return found


def _seats_in(link: EventRow) -> tuple[ActorSeat, ...]:
    return tuple(ActorSeat(**seat) for seat in link.body["seats"])
