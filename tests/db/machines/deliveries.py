"""The state machine of the outbox: drivers that crash between sending a row and recording it; the tracker keeps a set.

The tracker knows points by (id, time), so that a point sent twice is one point, and creations by the id that they are
tagged with: a driver that gets a row that was claimed before searches for it first.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from db.core.errors import OutOfOrder
from db.write.outbox import METRICS, ClaimedRow, OutboxEntry
from tests.db.machines.world import DRIVERS, World
from tests.db.tools import commit_of


class Deliveries(World):
    """The model: what the tracker holds, and which rows each driver believes it still has to send."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueued: dict[str, int] = {}
        """id -> time of every row, in order."""
        self.in_hand: dict[int, list[ClaimedRow]] = {}
        self.sent: dict[int, set[str]] = {}
        """Rows that each driver has sent since it claimed them."""
        self.claimed: set[str] = set()
        """Rows that this term has claimed and not given back."""
        self.delivered: list[str] = []
        self.points: set[tuple[str, int]] = set()
        self.creations: list[str] = []
        self.commits = 0

    def taken_over(self) -> None:
        self.claimed = set()

    @rule(driver=DRIVERS, number=st.integers(0, 3))
    def create(self, driver: int, number: int) -> None:
        """Enqueues an entry; the ledger keeps one row per id."""
        entry = OutboxEntry(f"{self.run}/create-{number}", "artifact", {"number": number}, 5)
        added = self.write(driver, lambda fence: self.ledger.outbox.enqueue(fence, [entry]))
        if added is not None:
            assert added == (entry.id not in self.enqueued)
            self.enqueued.setdefault(entry.id, entry.logged_at_ms)

    @rule(driver=DRIVERS)
    def commit(self, driver: int) -> None:
        iteration = self.commits
        self.write(driver, lambda fence: self.ledger.commits.commit(fence, commit_of(iteration)))
        if self.owns(driver):
            self.enqueued[f"{self.run}/b0/i{iteration}/metrics"] = 1000 + iteration
            self.commits += 1
            self.links += 1
            self.expires = self.clock.now + 10_000

    @rule(driver=DRIVERS, limit=st.integers(1, 3))
    def claim(self, driver: int, limit: int) -> None:
        rows = self.write(driver, lambda fence: self.ledger.outbox.claim(fence, limit))
        if rows is None:
            return
        waiting = [name for name in self.enqueued if name not in self.delivered and name not in self.claimed]
        assert [row.id for row in rows] == waiting[:limit], "out of order, or claimed twice"
        self.claimed |= {row.id for row in rows}
        self.sent.setdefault(driver, set()).difference_update(row.id for row in rows)
        self.in_hand.setdefault(driver, []).extend(rows)

    @rule(driver=DRIVERS)
    def send(self, driver: int) -> None:
        """Sends to the tracker only; nothing stops a driver that lost its lease from sending the rows it has.

        A driver sends a row once for each claim: after a failure it gives its rows back.
        """
        for row in self.in_hand.get(driver, [])[:1]:
            if row.id in self.sent[driver]:
                continue
            self.sent[driver].add(row.id)
            if row.kind == METRICS:
                self.points.add((row.id, row.logged_at_ms))
            elif self.owns(driver) and (row.claims == 0 or row.id not in self.creations):
                # Before a creation, a driver checks its own deadline, so a fenced driver creates nothing.
                self.creations.append(row.id)

    @rule(driver=DRIVERS)
    def book(self, driver: int) -> None:
        """Records a sent row as delivered; a driver that crashes before it does so leaves this to the next one."""
        rows = self.in_hand.get(driver, [])[:1]
        if not rows or not self._arrived(rows[0]):
            return
        name = rows[0].id
        try:
            booked = self.write(driver, lambda fence: self.ledger.outbox.delivered(fence, [name]) or True)
        except OutOfOrder:
            assert self.owns(driver)
            assert name not in self.claimed or name in self.delivered, "delivery of a claimed row was refused"
            self.in_hand[driver].pop(0)
            return
        if booked:
            assert name in self.claimed, "recorded by a term that had not claimed it"
            assert name not in self.delivered, "delivery recorded twice"
            self.delivered.append(name)
            self.in_hand[driver].pop(0)

    def _arrived(self, row: ClaimedRow) -> bool:
        return (row.id, row.logged_at_ms) in self.points or row.id in self.creations

    @rule(driver=DRIVERS)
    def give_back(self, driver: int) -> None:
        self.write(driver, lambda fence: self.ledger.outbox.give_back(fence))
        if self.owns(driver):
            self.claimed &= set(self.delivered)
            self.in_hand[driver] = []

    @rule(driver=DRIVERS)
    def crash(self, driver: int) -> None:
        self.in_hand.pop(driver, None)

    def teardown(self) -> None:
        """Checks that every id had its effect once."""
        super().teardown()
        assert self.ledger.outbox.counts(self.run) == (len(self.enqueued) - len(self.delivered), len(self.delivered))
        assert len(set(self.delivered)) == len(self.delivered)
        assert len(set(self.creations)) == len(self.creations), "created twice"
        assert len({name for name, _ in self.points}) == len(self.points), "a point has two times"
        assert set(self.delivered) <= {name for name, _ in self.points} | set(self.creations), (
            "recorded as delivered but never sent"
        )
