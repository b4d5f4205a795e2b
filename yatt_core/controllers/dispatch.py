"""Which engine of a pool gets the next decode batch: a pure state machine over metadata, owning no I/O.

Late binding: requests wait in one queue, and the head goes to the engine with the least outstanding work once that engine
has a free slot, so that a slow engine never holds work that a fast one could do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ticket:
    """A decode batch that waits for an engine. size: its responses."""

    number: int
    owner: str
    size: int


@dataclass(slots=True)
class _Engine:
    slots: int
    outstanding: dict[int, Ticket] = field(default_factory=dict)
    lost: bool = False

    @property
    def load(self) -> int:
        return sum(ticket.size for ticket in self.outstanding.values())


class DispatchQueue:
    """Grants tickets to engines, first come first served.

    engines: how many the pool has. slots: batches an engine may hold at once; two keep it busy while results travel.
    """

    def __init__(self, engines: int, slots: int = 2) -> None:
        self._engines = [_Engine(slots) for _ in range(engines)]
        self._waiting: deque[Ticket] = deque()
        self._numbers = 0

    def submit(self, owner: str, size: int) -> Ticket:
        """Queues a batch; `grant` says when it may go."""
        self._numbers += 1
        ticket = Ticket(self._numbers, owner, size)
        self._waiting.append(ticket)
        return ticket

    def grant(self) -> list[tuple[Ticket, int]]:
        """Tickets that may go now, each with its engine's index."""
        granted = []
        while self._waiting:
            free = [i for i, e in enumerate(self._engines) if not e.lost and len(e.outstanding) < e.slots]
            if not free:
                break
            index = min(free, key=lambda i: (self._engines[i].load, i))
            ticket = self._waiting.popleft()
            self._engines[index].outstanding[ticket.number] = ticket
            granted.append((ticket, index))
        return granted

    def release(self, number: int) -> None:
        """A granted batch is done; unknown numbers (of a forgotten owner) are no error."""
        for engine in self._engines:
            engine.outstanding.pop(number, None)

    def forget(self, owner: str) -> list[Ticket]:
        """Drops all that an owner waits for or holds, who is dead or gave up; returns what it waited for."""
        forgotten = [ticket for ticket in self._waiting if ticket.owner == owner]
        self._waiting = deque(ticket for ticket in self._waiting if ticket.owner != owner)
        for engine in self._engines:
            engine.outstanding = {n: t for n, t in engine.outstanding.items() if t.owner != owner}
        return forgotten

    def owners(self) -> set[str]:
        """Everybody who waits for an engine or holds one."""
        held = {ticket.owner for engine in self._engines for ticket in engine.outstanding.values()}
        return held | {ticket.owner for ticket in self._waiting}

    def lose(self, number: int) -> None:
        """The engine that was granted this batch is dead: it gets no more, and all that it held is dropped.

        A number that is not outstanding any more says nothing about the engine that has taken the dead one's place.
        """
        for engine in self._engines:
            if number in engine.outstanding:
                engine.outstanding, engine.lost = {}, True

    def is_lost(self, index: int) -> bool:
        """True from the report of an engine's death until it is replaced."""
        return self._engines[index].lost

    def renew(self, index: int) -> None:
        """A new engine stands in the place of an old one, whose batches are dropped."""
        self._engines[index].outstanding, self._engines[index].lost = {}, False

    def stranded(self) -> list[Ticket]:
        """Takes out what nobody is left to answer; empty while there is an engine."""
        if not all(engine.lost for engine in self._engines):
            return []
        stranded = list(self._waiting)
        self._waiting.clear()
        return stranded

    def outstanding(self) -> list[int]:
        """Responses under way by engine."""
        return [engine.load for engine in self._engines]

    @property
    def waiting(self) -> int:
        """Batches that no engine has yet."""
        return len(self._waiting)
