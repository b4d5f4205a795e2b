"""The Ray actor around a `DispatchQueue`: one per pool of engines; it sees sizes and names, never payload.

Consumes `acquire` calls of controllers; each waits until its batch is granted an engine and is unblocked by a `release`. A
grant brings the engine's handle along, so that controllers never hold one of an engine that was replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yatt_core.cluster.presence import Presence
from yatt_core.controllers.dispatch import DispatchQueue, Ticket
from yatt_core.errors import CutError, InfrastructureError
from yatt_core.logs import actor_logs
from yatt_core.spec import RunSpec

CONCURRENT_CALLS = 100_000
"""Every decode batch that waits for an engine is a call under way; a release must never wait behind them."""


class Dispatcher:
    """Asynchronous actor; all calls run on one event loop, so the queue needs no lock."""

    def __init__(self, spec_json: str, run_folder: str, index: int, epoch: int) -> None:
        spec, name = RunSpec.model_validate_json(spec_json), f"dispatcher-{index}"
        actor_logs(Path(run_folder), name, epoch)
        self._presence = Presence(Path(run_folder), name, epoch, spec.recovery.grace_seconds)
        self._queue = DispatchQueue(spec.rollout.engine.instances)
        self._engines: list[Any] = [None] * spec.rollout.engine.instances
        self._granted: dict[int, asyncio.Future[int]] = {}

    async def engage(self, epoch: int, engines: Sequence[Any]) -> None:
        """Takes the pool's living engines, in order; what a replaced one held is dropped."""
        self._presence.fence.check(epoch)
        for index, engine in enumerate(engines):
            known = self._engines[index]
            if known is None or known._actor_id != engine._actor_id or self._queue.is_lost(index):
                self._engines[index] = engine
                self._queue.renew(index)
        self._advance()

    async def acquire(self, epoch: int, owner: str, size: int) -> tuple[int, int, Any]:
        """Waits for an engine; returns the grant's number, the engine's index and its handle.

        Raises `InfrastructureError` when no engine of the pool is left.
        """
        self._presence.fence.check(epoch)
        ticket = self._queue.submit(owner, size)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._granted[ticket.number] = future
        self._advance()
        index = await future
        return ticket.number, index, self._engines[index]

    async def release(self, number: int) -> None:
        """Gives an engine's slot back."""
        self._queue.release(number)
        self._advance()

    async def lose(self, number: int) -> None:
        """Says that the engine of a grant is dead."""
        self._queue.lose(number)
        self._advance()

    async def forget(self, owner: str) -> None:
        """Drops what an owner waits for or holds, who is dead or gave up."""
        self._refuse(self._queue.forget(owner), InfrastructureError(f"{owner} gave up its batches"))
        self._advance()

    async def cut(self, epoch: int, owners: Sequence[str]) -> None:
        """Drops what these owners wait for, whose work is not waited for any more; what engines hold goes on to its end."""
        self._presence.fence.check(epoch)
        for owner in owners:
            self._refuse(self._queue.forget(owner), CutError(f"what {owner} waits for is not wanted any more"))
        self._advance()

    async def retain(self, owners: Sequence[str]) -> None:
        """Drops what all but these wait for or hold: the others are gone."""
        for owner in self._queue.owners() - set(owners):
            self._refuse(self._queue.forget(owner), InfrastructureError(f"{owner} is gone"))
        self._advance()

    async def outstanding(self) -> list[int]:
        """Responses under way by engine."""
        return self._queue.outstanding()

    def _advance(self) -> None:
        for ticket, index in self._queue.grant():
            self._granted.pop(ticket.number).set_result(index)
        self._refuse(self._queue.stranded(), InfrastructureError("no rollout engine is left"))

    def _refuse(self, tickets: Sequence[Ticket], error: InfrastructureError) -> None:
        for ticket in tickets:
            self._granted.pop(ticket.number).set_exception(error)
