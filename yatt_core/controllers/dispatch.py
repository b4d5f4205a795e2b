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
            free = [i for i, engine in enumerate(self._engines) if len(engine.outstanding) < engine.slots]
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

    def forget(self, owner: str) -> None:
        """Drops all that a dead owner waits for or holds."""
        self._waiting = deque(ticket for ticket in self._waiting if ticket.owner != owner)
        for engine in self._engines:
            engine.outstanding = {n: t for n, t in engine.outstanding.items() if t.owner != owner}

    def outstanding(self) -> list[int]:
        """Responses under way by engine."""
        return [engine.load for engine in self._engines]

    @property
    def waiting(self) -> int:
        """Batches that no engine has yet."""
        return len(self._waiting)
