"""Copies and writes a rank's share of checkpoints in a background thread; at most one checkpoint is in flight.

Consumes a function that copies the rank's state, which must not change until `finish_copy` has returned. Produces, on the
rank that publishes, receipts, each handed out a single time; a failed checkpoint raises its error instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Event

from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.checkpoints.shares import CheckpointAttempt
from yatt_core.checkpoints.spread import SpreadAttempt
from yatt_core.protocols.engines import FrozenState
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.storage.run_store import NoStore, RunStore

__all__ = ["CheckpointIdentity", "CheckpointWriter"]

PATIENCE_SECONDS = 600.0
log = logging.getLogger(__name__)


class CheckpointWriter:
    """Owns the background thread; must be called from a single thread.

    An orderly exit of the process waits for the checkpoint in flight.

    store: the durable tier, which must hold the checkpoint before its receipt is issued; by default there is only
        the disk.
    patience: seconds for which the publishing rank waits for the other ranks' shares.
    """

    def __init__(self, run_folder: Path, store: RunStore | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._run_folder = run_folder
        self._store = store or NoStore()
        self._patience = patience
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._result: Future[CheckpointReceipt | None] | None = None
        self._copy: Future[FrozenState] | None = None
        self._ahead: Future[FrozenState] | None = None
        self._abandoned = Event()

    def copy_ahead(self, freeze: Callable[[], FrozenState]) -> None:
        """Begins to copy the state for the checkpoint that begins next, unless the state changes before.

        The copy waits until the rank's share of the checkpoint before is written, since both have the same buffers.
        """
        self._ahead = self._copying(freeze)

    @property
    def copied_ahead(self) -> bool:
        """True if the state has been copied, or is being copied, for the checkpoint that begins next."""
        return self._ahead is not None

    def finish_copy(self, changes: bool = True) -> None:
        """Waits until the copy that has begun, if any, is complete.

        changes: whether the state is about to change, so that a copy that was made ahead is of no use any more.
        """
        if self._copy is not None:
            wait([self._copy])
            self._copy = None  # it would keep the buffers alive
        if changes:
            self._ahead = None

    def _copying(self, freeze: Callable[[], FrozenState]) -> Future[FrozenState]:
        self._copy = self._executor.submit(freeze)
        return self._copy

    def begin(
        self,
        folder: str,
        attempt: str,
        identity: CheckpointIdentity,
        freeze: Callable[[], FrozenState],
        apart: bool = False,
        at_once: bool = False,
    ) -> None:
        """Starts a checkpoint at `folder`, relative to the run folder.

        First waits until this rank has written its share of the one before. A caller begins the next checkpoint only
        when it knows how the last one ended, so a rank that still waits for others waits in vain; it gives up, and
        a result that nobody has asked for is dropped.

        attempt: names this attempt; the same on all ranks.
        identity: the checkpoint's identity; its weights' digest is computed in the background.
        freeze: copies the state, unless it has been copied ahead.
        at_once: whether to copy it in this thread, before this method returns.
        apart: whether ranks have disks of their own, so that their shares meet on the durable tier.
        """
        self._abandoned.set()
        if self._result is not None:
            wait([self._result])
            if (error := self._result.exception()) is not None:
                log.warning("a checkpoint failed, and nobody has asked for its result: %s", error)
        self._abandoned = Event()
        place = (self._run_folder, folder, attempt, identity)
        task = SpreadAttempt(*place, self._store) if apart else CheckpointAttempt(*place)
        if at_once:
            copy = Future[FrozenState]()
            copy.set_result(freeze())
        else:
            copy = self._ahead or self._copying(freeze)
            self._ahead = None
        self._result = self._executor.submit(self._publish, task, copy, self._abandoned)

    def _publish(
        self, attempt: CheckpointAttempt, copy: Future[FrozenState], abandoned: Event
    ) -> CheckpointReceipt | None:
        # The copy is made in this thread, before.
        frozen = copy.result()
        started = time.perf_counter()
        attempt.write(frozen)
        if frozen.rank > 0:
            return None
        receipt = attempt.publish(frozen, self._patience, abandoned)
        if not isinstance(attempt, SpreadAttempt):
            self._store.publish(receipt.folder)
        return replace(receipt, seconds=time.perf_counter() - started)

    @property
    def in_flight(self) -> bool:
        """True while a receipt or failure has not been handed out yet."""
        return self._result is not None

    def poll(self) -> CheckpointReceipt | None:
        """Returns the receipt if it has not been handed out yet; None if there is none or the checkpoint is unfinished.

        Raises the error that publishing the checkpoint raised.
        """
        if self._result is None or not self._result.done():
            return None
        found = self._result
        self._result = None
        return found.result()

    def wait(self, timeout_seconds: float) -> CheckpointReceipt | None:
        """Works like `poll`, after waiting up to `timeout_seconds` for the checkpoint in flight."""
        if self._result is not None:
            wait([self._result], timeout_seconds)
        return self.poll()
