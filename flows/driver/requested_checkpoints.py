"""Takes the checkpoints that operators ask for (`yatt checkpoint`), while the run goes on.

Consumes the ledger's pending request; produces the answer to whether an iteration's checkpoint is due for it, and the
record of the checkpoint that met it. The checkpoint itself is taken by the iteration's phase `checkpoint`. A driver that
dies in between leaves the request pending: the next one records the checkpoint if it was published, else takes it.
"""

from __future__ import annotations

from db.core.engine import Fence
from db.ledger import Ledger
from flows.driver.checkpoints import CheckpointKeeper
from flows.run.protocols import Observer


class RequestedCheckpoints:
    """The requests for a checkpoint during one driver session."""

    def __init__(self, ledger: Ledger, fence: Fence, observer: Observer) -> None:
        self._ledger = ledger
        self._fence = fence
        self._observer = observer
        self._taken_in: tuple[int, int] | None = None
        """The newest request and the iteration whose checkpoint was begun for it; publishing may outlast its commit."""

    def is_due(self, iteration: int) -> bool:
        """Returns True if the iteration takes a checkpoint because one is asked for; once True, it stays so."""
        request = self._ledger.checkpoint_requests.pending(self._fence.run)
        if request is None:
            return False
        if self._taken_in is None or self._taken_in[0] != request.seq or self._taken_in[1] > iteration:
            self._taken_in = request.seq, iteration  # the first time, or after a rollback to before its checkpoint
        return self._taken_in[1] == iteration

    def settle(self, checkpoints: CheckpointKeeper, iteration: int, is_last: bool = False) -> None:
        """Records that the pending request is met if a checkpoint that was taken for it, or later, is durable.

        One that was there when it was asked for does not meet it: whoever asks is told of a newer one.

        iteration: the last commit.
        is_last: the session ends with this commit, whose checkpoint is the newest that there can be.
        """
        request = self._ledger.checkpoint_requests.pending(self._fence.run)
        if request is None:
            return
        since = min(request.iteration, iteration)  # less than the request's after a rollback
        newest = next(iter(checkpoints.kept()), None)
        is_new = newest is not None and (is_last or newest.recorded_at >= request.at)
        if newest is not None and (newest.iteration > since or (newest.iteration == since and is_new)):
            self._ledger.checkpoint_requests.meet(self._fence, request, newest.iteration)
            self._observer.stage(f"the checkpoint that was asked for is that of iteration {newest.iteration}")
        elif not checkpoints.is_under_way:
            self._taken_in = None  # it failed, so the next iteration takes one
