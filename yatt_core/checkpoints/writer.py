"""Writes checkpoints in a background thread, off the critical path; at most one is in flight.

Consumes frozen state (copies that no longer refer to the trainer). Produces receipts, each handed out a single time, in
order; a failed checkpoint raises its error instead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.digests import weights_digest
from yatt_core.protocols.engines import FrozenState
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.storage.run_store import NoStore, RunStore

__all__ = ["CheckpointIdentity", "CheckpointWriter"]

COPIES = 4
"""Approximate size of a checkpoint in multiples of the weights: weights, the optimizer's two moments, a reference."""


class CheckpointWriter:
    """Owns the background thread; must be called from a single thread.

    An orderly exit of the process waits for the checkpoint in flight.

    store: the durable tier, which must hold the checkpoint before its receipt is issued; by default there is only
        the disk.
    """

    def __init__(self, run_folder: Path, store: RunStore | None = None) -> None:
        self._run_folder, self._store = run_folder, store or NoStore()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._results: deque[Future[CheckpointReceipt]] = deque()

    def begin(self, folder: str, identity: CheckpointIdentity, freeze: Callable[[], FrozenState | None]) -> None:
        """Starts a checkpoint at `folder`, relative to the run folder, after waiting for the one in flight.

        identity: the checkpoint's identity; its weights digest is computed from the copy, in the background.
        freeze: copies the state, in this thread; returns None if another rank publishes it.
        """
        wait(self._results)
        if (frozen := freeze()) is not None:
            self._results.append(self._executor.submit(self._publish, folder, identity, frozen))

    def _publish(self, folder: str, identity: CheckpointIdentity, frozen: FrozenState) -> CheckpointReceipt:
        identity = replace(identity, weights_digest=weights_digest(frozen.weights))
        needed_bytes = COPIES * sum(tensor.nbytes for tensor in frozen.weights.values()) + frozen.besides
        receipt = publish_checkpoint(self._run_folder, folder, identity, frozen, needed_bytes)
        started = time.perf_counter()
        self._store.publish(folder)
        return replace(receipt, seconds=receipt.seconds + time.perf_counter() - started)

    @property
    def in_flight(self) -> bool:
        """True while a receipt or failure has not been handed out yet."""
        return bool(self._results)

    def poll(self) -> CheckpointReceipt | None:
        """Returns the oldest receipt not handed out yet; None if there is none or the checkpoint is unfinished.

        Raises the error that publishing the checkpoint raised.
        """
        if not self._results or not self._results[0].done():
            return None
        return self._results.popleft().result()

    def wait(self, timeout_seconds: float) -> CheckpointReceipt | None:
        """Works like `poll`, after waiting up to `timeout_seconds` for the checkpoint in flight."""
        if self._results:
            wait([self._results[0]], timeout_seconds)
        return self.poll()
