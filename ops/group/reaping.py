"""The keeper's rounds over Prefect: flow runs of windows whose process is dead are closed (`flows.schedule.reaper`).

A thread of its own, so that a Prefect server that does not answer keeps no row from MLflow. Consumes the ledger and what the
environment says of Prefect; produces the state `Crashed` and a line in the log for each flow run that it closes.
"""

from __future__ import annotations

import logging
import os
import threading

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.prefect_io.prefect_server import PREFECT_VARIABLE, use_server
from flows.run.home import Home
from yatt_core.logs import redact

ROUND_SECONDS = 30.0
log = logging.getLogger("yatt.keeper")


def start_reaping(home: Home, ended: threading.Event) -> threading.Thread:
    """Begins to go round until `ended` is set."""
    use_server(home.group, os.environ[PREFECT_VARIABLE].removesuffix("/api"))
    thread = threading.Thread(target=_go_round, args=(home, ended), name="reaper", daemon=True)
    thread.start()
    return thread


def _go_round(home: Home, ended: threading.Event) -> None:
    from flows.prefect_io.prefect_client import AWAY, server_trouble
    from flows.schedule.reaper import reap

    try:
        while not ended.is_set():
            try:
                with Ledger.open(home.ledger, migrate=False) as ledger:
                    for closed in reap(ledger, home):
                        log.info("%s: flow run %s is closed: %s", closed.run, closed.flow_run, closed.why)
            except AWAY as error:
                log.warning("dead flow runs stay open: %s", server_trouble(error))
            except LedgerError as error:
                log.warning("dead flow runs stay open: %s", redact(str(error)))
            ended.wait(ROUND_SECONDS)
    finally:
        # After an error that nobody foresaw the keeper ends, and is started again.
        ended.set()
