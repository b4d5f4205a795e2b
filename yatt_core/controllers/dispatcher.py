"""The Ray actor around a `DispatchQueue`: one per pool of engines; it sees sizes and names, never payload.

Consumes `acquire` calls of controllers; each waits until its batch is granted an engine and is unblocked by a `release`.
"""

from __future__ import annotations

import asyncio

from yatt_core.controllers.dispatch import DispatchQueue
from yatt_core.fence import EpochFence


class Dispatcher:
    """Asynchronous actor; all calls run on one event loop, so the queue needs no lock."""

    def __init__(self, engines: int, epoch: int) -> None:
        self._queue = DispatchQueue(engines)
        self._granted: dict[int, asyncio.Future[int]] = {}
        self._fence = EpochFence(epoch)

    async def acquire(self, epoch: int, owner: str, size: int) -> tuple[int, int]:
        """Waits for an engine; returns the grant's number and the engine's index."""
        self._fence.check(epoch)
        ticket = self._queue.submit(owner, size)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._granted[ticket.number] = future
        self._advance()
        return ticket.number, await future

    async def release(self, number: int) -> None:
        """Gives an engine's slot back."""
        self._queue.release(number)
        self._advance()

    async def outstanding(self) -> list[int]:
        """Responses under way by engine."""
        return self._queue.outstanding()

    def _advance(self) -> None:
        for ticket, index in self._queue.grant():
            self._granted.pop(ticket.number).set_result(index)
