"""The queue as tables: pools, runs that hold devices or wait, and those that ended last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ops.presentation.output import write, write_table
from ops.presentation.queue_words import cost_text, pool_text, when_text

if TYPE_CHECKING:
    from ops.queries.queueing import EntryView, QueueView


def print_queue(view: QueueView) -> None:
    """Writes the queue."""
    write(f"scheduler: {view.scheduler or 'none; `yatt up` or `yatt queue serve` starts one'}")
    if not view.pools:
        write(f"{view.pools_file}: there are no pools yet; `yatt queue init` writes a first file")
        return
    pools = [
        (each.name, each.devices, each.held, each.free, ",".join(map(str, each.away)), pool_text(each))
        for each in view.pools
    ]
    write_table(("pool", "devices", "held", "free", "away", ""), pools)
    if view.entries:
        _print_entries(view.entries, "in the queue")
    if view.ended:
        _print_entries(view.ended, "ended last")


def _print_entries(entries: Sequence[EntryView], title: str) -> None:
    columns = ("run", "state", "priority", "owner", "project", "devices", "iteration", "waited", "end", "cost", "why")
    rows = [
        (
            each.run,
            "held back" if each.wanted == "hold" and each.state == "waiting" else each.state,
            each.priority,
            each.owner,
            each.project,
            f"{each.devices} of {','.join(each.pools)}" if each.pool is None else f"{each.pool}: {each.held}",
            f"{max(each.iteration, 0)}/{each.target_iterations}",
            f"{each.waited / 3600:.1f} h",
            when_text(each.ends_at),
            cost_text(each),
            each.reason,
        )
        for each in entries
    ]
    write_table(columns, rows, title, wraps="why")
