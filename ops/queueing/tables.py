"""The queue as tables: pools, runs that hold devices or wait, and those that ended last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.output import write, write_list

if TYPE_CHECKING:
    from ops.queueing.view import QueueView


def print_queue(view: QueueView) -> None:
    """Writes the queue."""
    from ops.queueing.view import ENTRIES, POOLS

    write(f"scheduler: {view.scheduler or 'none; `yatt up` or `yatt queue serve` starts one'}")
    if not view.pools:
        write(f"{view.pools_file}: there are no pools yet; `yatt queue init` writes a first file")
        return
    write_list(POOLS, view.pools)
    if view.entries:
        write_list(ENTRIES, view.entries, "in the queue")
    if view.ended:
        write_list(ENTRIES, view.ended, "ended last")
