"""Who holds runs on this host and is none of the group's: drivers that were started by hand, or by a button of the dashboard, and
commands such as `yatt promote`. They outlive it.

Consumes the ledger's leases; produces lines for whoever ended the group.
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
    """A line for each run that is held on this host, once the group and the windows of its worker have ended.

    The keeper of another home on the same ledger is not told of: it gives a run back by itself in a moment.
    """
    here = this_process().host
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            holders = ledger.leases.holders()
    except LedgerError as error:
        yield redact(f"which runs go on without the group is not known: {error}")
        return
    for run, holder in holders.items():
        if holder.host == here and not is_keeper(holder.text) and not is_gone(holder):
            yield (
                f"run {run} is still held by {holder.text}, which is none of the group's; a driver is stopped by "
                f"`yatt stop {run}`"
            )
