"""Transfers of one rank's buffers to the engines on its own GPU: they copy from its memory, which takes no group.

Consumes buffers and the store at which the members have met. The rank leaves a description of each buffer there; it may use
the buffer again once every engine has noted that it has copied it. A member that closes its end leaves a note, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from yatt_core.engines import device_memory
from yatt_core.engines.train.ranks.time_limits import time_limit

PAUSE_SECONDS = (0.0002, 0.02)
"""Shortest and longest pause between two looks at the store."""
LOOK_SECONDS = 1.0
"""Pause between two questions whether a member is gone."""
CLOSED = "closed"
"""Key under which a member notes that it has closed its end."""


class Lending:
    """One member's part in the transfers of a rank.

    source: the rank.
    borrowers: the engines on its GPU.
    own: this member, which is the rank or one of these engines.
    device: where this member's tensors are.
    check: raises an error if the transfer must not go on.
    """

    def __init__(
        self,
        store: Any,
        source: int,
        borrowers: Sequence[int],
        own: int,
        device: torch.device,
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._source = source
        self._borrowers = borrowers
        self._own = own
        self._lends = own == source
        self._device = device
        self._check = check
        self._buffers: dict[int, torch.Tensor] = {}

    def begin(self, number: int, buffer: torch.Tensor) -> None:
        """Begins to lend a buffer, or to copy into one. number: that of the buffer, unique until `finish`."""
        self._buffers[number] = buffer
        if self._lends:
            self._store.set(self._key("lent", number), device_memory.lent(buffer.view(torch.uint8)))

    def finish(self, number: int) -> None:
        """Waits until every engine has copied a buffer, or until this one has.

        Raises `RuntimeError` if a member has closed its end, or takes too long, and what the check raises.
        """
        buffer = self._buffers.pop(number)
        limit = time_limit(buffer.nbytes).total_seconds()
        if self._lends:
            keys = [self._key(f"copied by {borrower}", number) for borrower in self._borrowers]
            self._await(keys, limit)
            for key in (*keys, self._key("lent", number)):
                self._store.delete_key(key)
            return
        key = self._key("lent", number)
        self._await([key], limit)
        buffer.view(torch.uint8).copy_(device_memory.borrowed(bytes(self._store.get(key)), self._device))
        device_memory.wait_for(self._device)
        self._store.set(self._key(f"copied by {self._own}", number), b"")

    def close(self) -> None:
        """Lets go of the buffers, and tells the others."""
        self._buffers.clear()
        with suppress(RuntimeError):  # the store may be gone
            self._store.set(CLOSED, b"")

    def _key(self, what: str, number: int) -> str:
        return f"{what}/{self._source}/{number}"

    def _await(self, keys: list[str], limit: float) -> None:
        pausing = pauses(self._check)
        while not self._store.check(keys):
            if self._store.check([CLOSED]):
                raise RuntimeError("a member has closed its connections")
            if next(pausing) > limit:
                raise RuntimeError(f"no answer within {limit:g} s")


def pauses(check: Callable[[], None]) -> Iterator[float]:
    """Pauses, longer each time, between two looks for the other members; yields the seconds since the first pause began.

    check: called once in a while.
    """
    began = time.monotonic()
    pause = PAUSE_SECONDS[0]
    looked = began
    while True:
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS[1])
        now = time.monotonic()
        if now - looked > LOOK_SECONDS:
            check()
            looked = time.monotonic()
        yield now - began
