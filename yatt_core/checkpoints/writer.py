"""Writes snapshots in a background thread, off the critical path; at most one is in flight.

Consumes frozen state (a writer that no longer looks at the trainer). Produces receipts, each handed out once, in order; a
failed snapshot raises in their place.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from yatt_core.checkpoints.publish import SnapshotIdentity, publish_snapshot
from yatt_core.engines.protocol import StateWriter
from yatt_core.receipts import SnapshotReceipt

__all__ = ["SnapshotIdentity", "SnapshotWriter"]


class SnapshotWriter:
    """Owns the thread; called from one thread. The process's orderly end waits for the snapshot in flight."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._results: deque[Future[SnapshotReceipt]] = deque()

    def begin(self, folder: str, identity: SnapshotIdentity, write: StateWriter, needed_bytes: int) -> None:
        """Starts a snapshot at `folder`, relative to the run folder; first waits for the one in flight to end.

        needed_bytes: about what the writer will write.
        """
        wait(self._results)
        publish = self._executor.submit(publish_snapshot, self._run_folder, folder, identity, write, needed_bytes)
        self._results.append(publish)

    @property
    def in_flight(self) -> bool:
        """True while there is a receipt, or a failure, that nobody was given yet."""
        return bool(self._results)

    def poll(self) -> SnapshotReceipt | None:
        """The oldest receipt not handed out yet; None while it is in the making, or where there is none.

        Raises what the snapshot's publication raised.
        """
        if not self._results or not self._results[0].done():
            return None
        return self._results.popleft().result()

    def wait(self, timeout_seconds: float) -> SnapshotReceipt | None:
        """Like `poll`, after waiting for the snapshot in flight for that long at most."""
        if self._results:
            wait([self._results[0]], timeout_seconds)
        return self.poll()
