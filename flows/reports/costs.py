"""What a run was charged, by cause and phase: the time accounts priced by the billing records.

Consumes a run's history and its billing records in the ledger; produces amounts by `ChargeKey`. The time is that in which
devices were held, so the parts add up to `flows.billing.held_time.total_charges`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from db.ledger import Ledger
from db.read.history import RunHistory
from flows.billing.held_time import held_spans, records_of
from flows.reports.accounting import CHECKPOINT, PRODUCTIVE, REDONE, RESTART, WAITING, book
from flows.reports.accounting import IDLE as NOT_DRIVEN
from flows.reports.accounting import START as FIRST_START
from flows.run.session_times import SessionSpan, session_spans
from yatt_core.costs.billing import with_past_prices
from yatt_core.costs.charging import FAULTS, IDLE, START, TRAINING, Amounts, ChargeKey, HeldInterval, charge
from yatt_core.costs.prices import PriceFile

CAUSE_OF = {
    PRODUCTIVE: TRAINING,
    CHECKPOINT: TRAINING,
    REDONE: FAULTS,
    RESTART: FAULTS,
    FIRST_START: START,
    WAITING: IDLE,
    NOT_DRIVEN: IDLE,
}
BETWEEN = "between phases"


def charges_of(
    ledger: Ledger, run: str, since: int | None = None, prices: PriceFile | None = None
) -> dict[ChargeKey, Amounts]:
    """Returns what a run was charged. Raises `RunNotFound`.

    since: only from this time on, in milliseconds since 1970.
    prices: apply to time whose price is unknown; None: such time has no price.
    """
    history = ledger.overview.history(run)
    spans = held_spans(ledger, run)
    records = records_of(ledger, run, spans[0].start if spans else None)
    if prices is not None:
        spot = bool(ledger.runs.revision(run).spec.get("billing", {}).get("spot", False))
        records = with_past_prices(records, prices, spot)
    return charge(run, held_pieces(history, spans), records, since)


def held_pieces(history: RunHistory, spans: Sequence[SessionSpan]) -> Iterator[HeldInterval]:
    """Yields the pieces of the time accounts that are within the spans, which they cover.

    spans: the times in which the run held devices, in order; each within the time of a session.
    """
    number = 0
    for piece in book(history, session_spans(history)):
        while number < len(spans) and spans[number].end <= piece.start:
            number += 1
        for span in spans[number:]:
            if span.start >= piece.end:
                break
            start = max(span.start, piece.start)
            end = min(span.end, piece.end)
            if start < end:
                yield HeldInterval(start, end, CAUSE_OF[piece.bucket], piece.phase or BETWEEN)
