"""Where the actors were: spans end with an orderly session or with the next record, and survive a lost driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from flows.placement.seats import SEATS, last_seats, seat_spans, seat_table
from tests.db.tools import SimulatedClock
from yatt_core.protocols.receipts import ActorSeat

GIB = 1 << 30


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SimulatedClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        yield ledger


def seat(actor: str, incarnation: str, node: str = "a", device: str = "gpu0") -> ActorSeat:
    return ActorSeat(actor, incarnation, node, device, 2 * GIB, GIB)


def begin(ledger: Ledger, run: str) -> Fence:
    fence = ledger.leases.acquire(run, this_process("a test"), 60, holder_is_gone=lambda _: True)
    ledger.leases.start_session(fence, f"flow-{fence.term}", "flow")
    return fence


def record(ledger: Ledger, fence: Fence, *seats: ActorSeat) -> None:
    ledger.events.append(fence.run, SEATS, {"seats": [asdict(each) for each in seats]}, fence)


def test_spans_of_actors_through_sessions(ledger: Ledger, clock: SimulatedClock) -> None:
    run = ledger.runs.create("words", {}, "d", 4).id
    start = clock.now

    def spans() -> list[tuple[str, str, float, float | None]]:
        return [
            (
                span.seat.id,
                f"{span.seat.node}/{span.seat.device}",
                (span.since - start) / 1000,
                None if span.until is None else (span.until - start) / 1000,
            )
            for span in seat_spans(ledger, run)
        ]

    fence = begin(ledger, run)
    assert spans() == [] and last_seats(ledger, run) is None
    record(ledger, fence, seat("rollout-0", "r0"), seat("trainer-0", "t0"))
    clock.advance(10)
    record(ledger, fence, seat("rollout-0", "r0"), seat("trainer-0", "t1", "b", "gpu3"))
    clock.advance(10)
    fence = begin(ledger, run)  # the driver was lost: the actors go on
    assert spans()[:2] == [("r0", "a/gpu0", 0.0, None), ("t0", "a/gpu0", 0.0, 10.0)]
    clock.advance(10)
    ledger.leases.end_session(fence, "ended")
    ledger.leases.release(fence)
    ended = [("r0", "a/gpu0", 0.0, 30.0), ("t0", "a/gpu0", 0.0, 10.0), ("t1", "b/gpu3", 10.0, 30.0)]
    assert spans() == ended
    clock.advance(100)
    fence = begin(ledger, run)
    record(ledger, fence, seat("rollout-0", "r1"))
    assert spans() == [*ended, ("r1", "a/gpu0", 130.0, None)], "nothing was seated between the sessions"
    table = seat_table(seat_spans(ledger, run))
    first = dict(zip(table["columns"], table["data"][0], strict=True))
    assert (first["actor"], first["host_bytes"], first["gpu_bytes"]) == ("rollout-0", 2 * GIB, GIB)
    assert last_seats(ledger, run) == (seat("rollout-0", "r1"),)
