"""Finds processes that hold runs on this host without belonging to the group, and so outlive it.

They are drivers that were started from a terminal or from the dashboard, and commands such as `yatt promote`.
Consumes the ledger's leases; produces messages for the process that stopped the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from db.core.errors import LedgerError
from db.core.holder import is_gone, this_process
from db.ledger import Ledger
from flows.run.home import Home
from flows.run.lease import is_keeper
from yatt_core.logs import redact


def going_on(home: Home) -> Iterator[str]:
    """Yields a line for each run still held on this host after the group and the windows of its worker have ended.

    A keeper of another home on the same ledger is not reported, because it holds a run only for a moment.
    """
    here = this_process().host
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            holders = ledger.leases.holders()
    except LedgerError as error:
        yield redact(f"cannot tell which runs continue without the group: {error}")
        return
    for run, holder in holders.items():
        if holder.host == here and not is_keeper(holder.text) and not is_gone(holder):
            yield (
                f"run {run} is still held by {holder.text}, which does not belong to the group; to stop a driver, use "
                f"`yatt stop {run}`"
            )
